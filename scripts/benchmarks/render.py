"""A machine's benchmark results as Markdown."""

from __future__ import annotations

import textwrap
from typing import Any

ENGINES = ("plain", "looped", "workers", "stacked", "captured", "tf32", "merged")


def markdown(result: dict[str, Any]) -> str:
    """One machine's rounds and server side, with the conditions they were measured under."""
    lines = [
        f"{result['machine']}, device {result['device']}, torch {result['version_torch']}, {result['date']}",
        "",
        "Client-steps a second, medians of interleaved rounds in one process (`load`: average number of running",
        "processes when the benchmark began, so above 0 others competed for the cores; `MiB`: the process's peak",
        "so far; on a CPU with workers, the comparison in float64 and earlier workloads):",
        "",
        "| workload | " + " | ".join(ENGINES) + " | best / plain | stacked / merged | MiB | load |",
        "|---|" + "---|" * (len(ENGINES) + 4),
        *(_round(row) for row in result["rounds"]),
        "",
        *(f"- {row['workload']}: {row['what']}{_fewer(row)}" for row in result["rounds"]),
    ]
    if any("arithmetic" in row for row in result["rounds"]):
        lines += ["", *arithmetic(result["rounds"])]
    if any("calibrated" in row for row in result["rounds"]):
        lines += [
            "",
            "What the choice of an engine rests on, a few steps timed before a run, beside the rates above:",
            "",
            *(_chosen(row) for row in result["rounds"] if "calibrated" in row),
        ]
    if "server" in result:
        load = f"{result['server_load_before']:.1f}"
        lines += [
            "",
            f"Server side, seconds a call on one thread (load {load}):",
            "",
            *_server(result["server"]),
        ]
    if any("two_processes" in row for row in result["rounds"]):
        each = ", ".join(
            f"{row['two_processes']:.2f} on {row['workload']}"
            for row in result["rounds"]
            if "two_processes" in row
        )
        lines += [
            "",
            "Two plain loops at once do so many times the work of one, which is what two worker processes can reach",
            f"here: {each}.",
        ]
    if result.get("profile"):
        lines += [
            "",
            "Shares of a round's time by operator, one process:",
            "",
            *map(_profile, result["profile"]),
        ]
    if result.get("phases"):
        lines += ["", *phases_table(result["phases"])]
    if result.get("seeds"):
        lines += ["", *seeds_lines(result["seeds"])]
    if result.get("rivals"):
        lines += ["", *rivals_table(result["rivals"])]
    if result.get("discriminators"):
        found = result["discriminators"]
        lines += ["", f"{found['pairs']} discriminators on Fashion-MNIST: {found['seconds']} s"]
    return "\n".join(lines) + "\n"


def arithmetic(rows: list[dict[str, Any]]) -> list[str]:
    """What each workload asks of the device, how much of its peak it gets, and where a round's time goes."""
    lines = [
        "A client-step's products and convolutions, and its bytes to and from memory at least; the shares of the",
        "device's peaks (float32, without tensor cores) that the best engine reaches; the stacked engine's peak memory",
        "as predicted and as measured; milliseconds a round until it was done, until the host had asked for all of it,",
        "and that kernels ran:",
        "",
        "| workload | GFLOP | MB | share of FLOP/s | of bandwidth | MiB predicted | measured | milliseconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in [row for row in rows if "arithmetic" in row]:
        work, memory = row["arithmetic"], row["memory"] or {}
        shares = (
            "-" if (s := work[f"share_of_{of}"]) is None else f"{100 * s:.1f} %"
            for of in ("flops", "bandwidth")
        )
        mib = (memory.get(name, "-") for name in ("predicted_mib", "measured_mib"))
        spent = "; ".join(f"{name} {_spent(each)}" for name, each in row["milliseconds"].items())
        cells = (row["workload"], work["gigaflop"], work["megabytes"], *shares, *mib, spent)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _spent(milliseconds: dict[str, float]) -> str:
    return " / ".join(f"{value:,.1f}" for value in milliseconds.values())


def _rate(steps: float) -> str:
    return f"{steps:,.{0 if steps >= 10 else 1}f}"


def _round(row: dict[str, Any]) -> str:
    rates = [_rate(row["rate"][name]) if name in row["rate"] else "-" for name in ENGINES]
    best = f"{row['vs_plain'][row['best']]:.2f} ({row['best']})"
    load = f"{row['load_before']:.1f}" if "load_before" in row else "-"
    cells = (row["workload"], *rates, best, row["stacking_efficiency"], row["peak_mib"], load)
    return "| " + " | ".join(map(str, cells)) + " |"


def _chosen(row: dict[str, Any]) -> str:
    timed = ", ".join(
        f"{name} {1000 * seconds:.2f} ms a step (measured {1000 / row['rate'][name]:.2f})"
        for name, seconds in row["calibrated"].items()
    )
    start = f"; worker processes answer after {row['workers_start']:.1f} s" if "workers_start" in row else ""
    return f"- {row['workload']}: {timed}{start}"


def _fewer(row: dict[str, Any]) -> str:
    return f" (here with `--quick`: {row['client_steps']} client-steps a round)" if row["quick"] else ""


def _server(rows: list[dict[str, Any]]) -> list[str]:
    tasks = [name for name in rows[0] if name != "clients"]
    sizes = " | ".join(f"N = {row['clients']}" for row in rows)
    lines = [f"| | {sizes} |", "|---|" + "---|" * len(rows)]
    for task in tasks:
        cells = " | ".join(f"{row[task]:g}" for row in rows)
        lines.append(f"| {task.replace('_', ' ')} | {cells} |")
    return lines


def _profile(found: dict[str, Any]) -> str:
    shares = ", ".join(f"{name.removeprefix('aten::')} {value} %" for name, value in found["shares"].items())
    drawing = "".join(f", {what} {value} us" for what, value in found.get("drawing", {}).items())
    return f"- {found['workload']}: {shares}" + (drawing and f"; a mini-batch on the host{drawing}")


def phases_table(found: dict[str, Any]) -> list[str]:
    """What a run's time goes into at each paper's protocol."""
    lines = [
        "Shares of a run's time, models scored as often as the papers do, the engine chosen by itself. Fashion-MNIST",
        f"replaces other data sets; what happens once before round 0 is left out (load {found['load_before']:.1f}):",
        "",
        "| method and protocol | scored every | local work | server | evaluation |",
        "|---|---|---|---|---|",
    ]
    for case in found["cases"]:
        every = f"{case['eval_every']} rounds" if case["eval_every"] > 1 else "round"
        shares = " | ".join(f"{case['shares'][phase]:g} %" for phase in ("train", "server", "evaluate"))
        lines.append(f"| {case['case']} | {every} | {shares} |")
    return lines


def seeds_lines(found: dict[str, Any]) -> list[str]:
    """Five seeds as one program, in a sentence."""
    seconds = found["seconds"]
    text = (
        f"W6, {found['what']}: a round of local training takes {seconds['one']:.1f} s for one seed, "
        f"{seconds['apart']:.1f} s for all one after the other, {seconds['together']:.1f} s for all as one program. "
        f"That is {found['apart_over_together']:.2f} of the speed (load {found['load_before']:.1f})."
    )
    return textwrap.wrap(text, 120)


def rivals_table(rows: list[dict[str, Any]]) -> list[str]:
    """Other frameworks beside fedbench: their seconds a round, ours, and our speed over theirs."""
    lines = [
        "Other frameworks, with the same network, initial weights, samples and local steps. Each has an environment of",
        "its own, one thread a process, and preloaded data. Seconds are those of the fastest round after a warm-up, as",
        "other processes only add to them, with the median round in brackets. fedbench ran right before and after, on",
        "as many cores: the mean of the two. Accuracy is that of the final global model.",
        "",
        "| workload | rival | processes | its s a round | fedbench's | fedbench / rival | accuracy | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        own = {each["engine"]: each for each in row["fedbench"]}
        cells = [_rival(row, rival, own) for rival in row["rivals"]]
        lines += ["| " + " | ".join(map(str, each)) + " |" for each in cells]
    missing = {each["rival"]: each["missing"] for row in rows for each in row["rivals"] if "missing" in each}
    notes = [f"- {name} was not measured: {reason}" for name, reason in missing.items()]
    return [*lines, "", *notes] if notes else lines


def _rival(row: dict[str, Any], rival: dict[str, Any], own: dict[str, dict[str, Any]]) -> tuple[object, ...]:
    begin = (row["workload"], f"{rival['rival']} {rival['version']}", rival["processes"])
    load = f"{row['load_before']:.1f}" if "load_before" in row else "-"
    if "missing" in rival:
        return (*begin, "-", "-", "-", "-", load)
    mine = own[rival["against"]]
    accuracy = f"{rival['accuracy']:.3f}, ours {mine['accuracy']:.3f}"
    ours = f"{mine['engine']} {mine['seconds']:.2f} ({mine['median']:.2f})"
    theirs = f"{rival['seconds']:.2f} ({rival['median']:.2f})"
    return (*begin, theirs, ours, f"{rival['ratio']:.2f}", accuracy, load)
