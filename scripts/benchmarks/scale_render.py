"""The scale benchmark's results as a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUND = {
    "clients": "clients N",
    "cohort": "cohort",
    "seconds": "s a round",
    "cpu_seconds": "CPU s a round",
    "round_mib": "MiB a round",
    "lists_mib": "MiB of index lists",
    "process_mib": "MiB, process",
    "load_before": "load",
}
STORE = {
    "clients": "clients N",
    "store": "store",
    "seconds": "s a round",
    "cpu_seconds": "CPU s a round",
    "rows_mib": "MiB of client memory",
    "own_mib": "MiB, process's own",
    "process_mib": "MiB, process",
    "checkpoint_seconds": "s a checkpoint",
    "checkpoint_mib": "MiB a checkpoint",
    "load_before": "load",
}


def markdown(result: dict[str, Any]) -> str:
    """One machine's cases, with the conditions they were measured under."""
    conditions = (
        f"{result['machine']}, device {result['device']}, torch {result['version_torch']}, {result['date']}, "
        f"commit {result['commit'][:12]}"
    )
    lines = [
        conditions,
        "",
        "Rounds of a stateless method (FedAvg, LeNet5, 3 x 32 x 32, two steps a client); `MiB a round`: most that was",
        "allocated at once beyond what there was before; `load`: average number of running processes before the case:",
        "",
        *table(ROUND, [*result["by_clients"], *result["by_cohort"]]),
        "",
        "A stateful method (Ditto, LeNet5, a cohort of 100), every client with memory of its own, in a tensor",
        "(`device`) or in a memory-mapped `file`; checkpoints a round after the one before; `process`: its peak, with",
        "mapped pages:",
        "",
        *table(STORE, result["stateful"]),
    ]
    return "\n".join(lines) + "\n"


def table(columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown lines."""
    body = ["| " + " | ".join(cell(row[name]) for name in columns) + " |" for row in rows]
    return ["| " + " | ".join(columns.values()) + " |", "|---" * len(columns) + "|", *body]


def cell(value: Any) -> str:
    """Numbers with three digits that count."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def figure(result: dict[str, Any]) -> Figure:
    """Seconds and MiB of a round against N, against the cohort, and of a stateful method against N."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12, 6.5), layout="constrained")
    axes = drawn.subplots(2, 3)
    drawn.suptitle(f"{result['machine']}, {result['device']}, {result['date']}", fontsize=10)
    stores = {
        kind: [row for row in result["stateful"] if row["store"] == kind] for kind in ("device", "file")
    }
    names = {"device": "in a tensor", "file": "in a mapped file"}
    line(
        axes[0, 0],
        result["by_clients"],
        "clients",
        {"seconds": "stateless, cohort 100", "cpu_seconds": "of the CPU"},
        "seconds a round",
    )
    line(
        axes[0, 1],
        result["by_cohort"],
        "cohort",
        {"seconds": "stateless, 100,000 clients", "cpu_seconds": "of the CPU"},
        "seconds a round",
    )
    sizes = {"round_mib": "allocated in a round", "lists_mib": "index lists"}
    line(axes[1, 0], result["by_clients"], "clients", sizes, "MiB")
    line(axes[1, 1], result["by_cohort"], "cohort", sizes, "MiB")
    for kind, rows in stores.items():
        line(axes[0, 2], rows, "clients", {"cpu_seconds": f"stateful, {names[kind]}"}, "CPU seconds a round")
        line(axes[1, 2], rows, "clients", {"own_mib": f"process, {names[kind]}"}, "MiB")
    line(axes[1, 2], stores["file"], "clients", {"rows_mib": "all clients' memory"}, "MiB")
    for axis in drawn.axes:
        low, high = axis.get_ylim()
        if high < 10 * low:  # a flat line looks flat
            axis.set_ylim((low * high) ** 0.5 / 4, (low * high) ** 0.5 * 4)
    return drawn


def line(axis: Axes, rows: Sequence[dict[str, Any]], x: str, ys: dict[str, str], label: str) -> None:
    """`ys` of `rows` over `x`, both axes logarithmic."""
    for y, name in ys.items():
        axis.loglog([row[x] for row in rows], [row[y] for row in rows], marker="o", label=name)
    axis.set_xlabel({"clients": "registered clients N", "cohort": "cohort"}[x])
    axis.set_ylabel(label)
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
