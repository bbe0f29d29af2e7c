"""A machine's benchmark results as Markdown: the page beside them."""

from __future__ import annotations

from typing import Any

from pages import table

ENGINES = ("looped", "workers", "stacked", "captured", "tf32")
Row = dict[str, Any]


def markdown(result: Row) -> str:
    """Return one machine's results, with the conditions they were measured under."""
    about = f"{result['machine']} ({result['device']}), torch {result['version_torch']}, {result['date']}:"
    found = [made(result[key]) for key, made in PARTS.items() if result.get(key)]
    if one := result.get("discriminators"):
        found.append([f"{one['pairs']} discriminators on Fashion-MNIST: {one['seconds']} s"])
    return "\n\n".join([about, *map("\n".join, found)]) + "\n"


def _rounds(rows: list[Row]) -> list[str]:
    engines = [name for name in ENGINES if any(name in row["vs_plain"] for row in rows)]
    over = [f"{name} / plain" for name in engines]
    head = (
        "workload",
        "plain, steps a second",
        *over,
        "two plain loops / one",
        "stacked / merged",
        "MiB",
        "load",
    )
    lines = []
    for row in rows:
        ratios = [row["vs_plain"].get(name) for name in engines]
        numbers = (*ratios, row.get("two_processes"), row["stacking_efficiency"])
        lines.append(
            (
                f"{row['workload']}: {row['what']}" + (" (fewer clients a round)" if row["quick"] else ""),
                f"{row['rate']['plain']:,.{int(row['rate']['plain'] < 10)}f}",
                *("-" if number is None else f"{number:.2f}" for number in numbers),
                row["peak_mib"],
                f"{row['load_before']:.1f}",
            )
        )
    return table(head, *lines)


def _server(rows: list[Row]) -> list[str]:
    tasks = [name for name in rows[0] if name != "clients"]
    cells = [(task.replace("_", " "), *(f"{row[task]:g}" for row in rows)) for task in tasks]
    said = ["The server alone, seconds a call on one thread:", ""]
    return [*said, *table(("", *(f"N = {row['clients']}" for row in rows)), *cells)]


def _phases(found: Row) -> list[str]:
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
        *table(("method and protocol", "scored every", "local work", "server", "evaluation"), *rows),
    ]


def _floor(rows: list[Row]) -> list[str]:
    measured = rows[-1]["rates"]
    rates = [f"{measured[name] / 1e12:.3g} T operations a second in {name}" for name in measured if name != "bytes"]
    text = f"Measured: {', '.join(rates)}; {measured['bytes'] / 1e9:.0f} GB a second, read and written."
    floors, ways, top = [], [], list[str]()
    for row in rows:
        least = [_number(row["floor"].get(name), 1e3) for name in ("float32", "tf32")]
        size = (f"{row['operations'] / 1e9:.3g}", f"{row['bytes'] / 2**20:.3g}")
        floors.append((row["workload"], row["what"], *size, *least, f"{row['load_before']:.1f}"))
        for name, way in row["ways"].items():
            if "failed" in way:
                ways.append((row["workload"], name, f"failed: {way['failed']}", *"-" * 7))
                continue
            plain = row["ways"]["plain"].get("rate")
            ratio = None if plain is None else way["rate"] / plain
            used = [_number(way.get(key)) for key in ("launches", "waits", "kernels")]
            times = (_number(way["besides"], 1e3), *used, _number(way.get("kernels_us"), 1e-3))
            ways.append((row["workload"], name, f"{way['rate']:,.0f}", f"{way['share']:.3f}", _number(ratio), *times))
        if kernels := row["ways"].get("captured", {}).get("top"):
            lines = [(each["kernel"][:80], _number(each["calls"]), _number(each["us"])) for each in kernels]
            top += ["", *table((f"{row['workload']}, captured: kernel", "calls a step", "us a step"), *lines)]
    head = ("step", "", "G operations", "MiB", "floor, ms", "in TF32, ms", "load")
    of_ways = ("step", "way", "client-steps a second", "of the floor", "over plain", "ms a round besides")
    used_by = ("launches a step", "waits a round", "kernels a step", "ms of kernels a step")
    return [text, "", *table(head, *floors), "", *table((*of_ways, *used_by), *ways), *top]


def _number(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{scale * value:.3g}"


def _processes(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        for count, seconds in row["seconds"].items():
            gain = int(count) * row["seconds"]["1"] / seconds
            lines.append((row["workload"], row["steps"], count, _number(seconds), f"{gain:.2f}"))
    head = ("setting", "steps a round", "runs at once", "seconds a round", "runs in the time of one")
    return ["Several runs, each in a process of its own:", "", *table(head, *lines)]


def _tf32(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        for pair in row["pairs"]:
            numbers = [f"{pair[name][key]:.2f}" for key in ("acc", "seconds") for name in ("float32", "tf32")]
            lines.append((row["workload"], pair["seed"], *numbers, f"{row['load_before']:.1f}"))
    head = ("cell", "seed", "accuracy, float32", "TF32", "seconds, float32", "TF32", "load")
    return ["The same runs in float32 and in TF32:", "", *table(head, *lines)]


def _rivals(rows: list[Row]) -> list[str]:
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
    return [
        "Other frameworks, with the same network, initial weights, samples and local steps. Each has an environment of",
        "its own, one thread a process, and preloaded data. Seconds are those of the fastest round after a warm-up, as",
        "other processes only add to them, with the median round in brackets. fedbench ran right before and after, on",
        "as many cores: the mean of the two. Accuracy is that of the final global model.",
        "",
        *table(head, *(_rival(row, rival) for row in rows for rival in row["rivals"])),
    ]


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
        f"{row['load_before']:.1f}",
    ]


PARTS = {  # by the key of the results
    "rounds": _rounds,
    "server": _server,
    "phases": _phases,
    "floor": _floor,
    "processes": _processes,
    "tf32": _tf32,
    "rivals": _rivals,
}
