"""A machine's benchmark results as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

ENGINES = ("plain", "looped", "workers", "stacked", "captured", "tf32", "merged")
Row = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table's lines."""
    body = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *body]


def markdown(result: Row) -> str:
    """One machine's results, with the conditions they were measured under."""
    rounds = result["rounds"]
    lines = [
        f"{result['machine']}, device {result['device']}, torch {result['version_torch']}, {result['date']}",
        "",
        "Client-steps a second, medians of interleaved rounds in one process (`load`: average number of running",
        "processes when the benchmark began, so above 0 others competed for the cores; `MiB`: the process's peak",
        "so far; on a CPU with workers, the comparison in float64 and earlier workloads):",
        "",
        *table(
            ("workload", *ENGINES, "best / plain", "stacked / merged", "MiB", "load"), map(_round, rounds)
        ),
        "",
        *(f"- {row['workload']}: {row['what']}{_fewer(row)}" for row in rounds),
    ]
    if "server" in result:
        rows, tasks = result["server"], [name for name in result["server"][0] if name != "clients"]
        cells = [(task.replace("_", " "), *(f"{row[task]:g}" for row in rows)) for task in tasks]
        lines += [
            "",
            f"Server side, seconds a call on one thread (load {result['server_load_before']:.1f}):",
            "",
        ]
        lines += table(("", *(f"N = {row['clients']}" for row in rows)), cells)
    if both := [f"{r['two_processes']:.2f} on {r['workload']}" for r in rounds if "two_processes" in r]:
        lines += [
            "",
            "Two plain loops at once do so many times the work of one, which is what two worker processes",
        ]
        lines += [f"can reach here: {', '.join(both)}."]
    if result.get("profile"):
        lines += ["", "Shares of a round's time by operator, one process:", ""]
        lines += [f"- {each['workload']}: {_shares(each['shares'])}" for each in result["profile"]]
    for key, made in OTHERS.items():
        lines += ["", *made(result[key])] if result.get(key) else []
    if found := result.get("discriminators"):
        lines += ["", f"{found['pairs']} discriminators on Fashion-MNIST: {found['seconds']} s"]
    return "\n".join(lines) + "\n"


def _round(row: Row) -> list[Any]:
    rates = [f"{row['rate'][n]:,.{int(row['rate'][n] < 10)}f}" if n in row["rate"] else "-" for n in ENGINES]
    best = f"{row['vs_plain'][row['best']]:.2f} ({row['best']})"
    load = f"{row['load_before']:.1f}" if "load_before" in row else "-"
    return [row["workload"], *rates, best, row["stacking_efficiency"], row["peak_mib"], load]


def _fewer(row: Row) -> str:
    return f" (here with `--quick`: {row['client_steps']} client-steps a round)" if row["quick"] else ""


def _shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{name.removeprefix('aten::')} {value} %" for name, value in shares.items())


def phases_table(found: Row) -> list[str]:
    """What a run's time goes into at each paper's protocol."""
    rows = [
        (
            case["case"],
            f"{case['eval_every']} rounds" if case["eval_every"] > 1 else "round",
            *(f"{case['shares'][phase]:g} %" for phase in ("train", "server", "evaluate")),
        )
        for case in found["cases"]
    ]
    return [
        "Shares of a run's time, models scored as often as the papers do, the engine chosen by itself. Fashion-MNIST",
        f"replaces other data sets; what happens once before round 0 is left out (load {found['load_before']:.1f}):",
        "",
        *table(("method and protocol", "scored every", "local work", "server", "evaluation"), rows),
    ]


def seeds_lines(found: Row) -> list[str]:
    """Five seeds as one program, in a sentence."""
    seconds = found["seconds"]
    beside = f", {seconds['processes']:.1f} s for a process each" if "processes" in seconds else ""
    text = (
        f"W6, {found['what']}: a round of local training takes {seconds['one']:.1f} s for one seed, "
        f"{seconds['apart']:.1f} s for all one after the other{beside}, {seconds['together']:.1f} s for all as one "
        f"program. That is {found['apart_over_together']:.2f} of the speed (load {found['load_before']:.1f})."
    )
    return textwrap.wrap(text, 120)


def rivals_table(rows: list[Row]) -> list[str]:
    """Other frameworks beside fedbench: their seconds a round, ours, and our speed over theirs."""
    head = (
        "workload",
        "rival",
        "processes",
        "its s a round",
        "fedbench's",
        "fedbench / rival",
        "accuracy",
        "load",
    )
    lines = [
        "Other frameworks, with the same network, initial weights, samples and local steps. Each has an environment of",
        "its own, one thread a process, and preloaded data. Seconds are those of the fastest round after a warm-up, as",
        "other processes only add to them, with the median round in brackets. fedbench ran right before and after, on",
        "as many cores: the mean of the two. Accuracy is that of the final global model.",
        "",
    ]
    return [*lines, *table(head, (_rival(row, rival) for row in rows for rival in row["rivals"]))]


def _rival(row: Row, rival: Row) -> list[Any]:
    mine = next(each for each in row["fedbench"] if each["engine"] == rival["against"])
    return [
        row["workload"],
        f"{rival['rival']} {rival['version']}",
        rival["processes"],
        f"{rival['seconds']:.2f} ({rival['median']:.2f})",
        f"{mine['engine']} {mine['seconds']:.2f} ({mine['median']:.2f})",
        f"{rival['ratio']:.2f}",
        f"{rival['accuracy']:.3f}, ours {mine['accuracy']:.3f}",
        f"{row['load_before']:.1f}" if "load_before" in row else "-",
    ]


OTHERS = {"phases": phases_table, "seeds": seeds_lines, "rivals": rivals_table}
