"""What is printed when all parts were run."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.render import ENGINES, rivals_table


def show(result: dict[str, Any]) -> None:
    """Print ratios and seconds."""
    console = Console()
    table = Table(
        title=f"{result['machine']}, {result['device']}: client-steps a second", title_justify="left"
    )
    names = list(ENGINES)
    for column in ("workload", *names, "best / plain", "stacked / merged"):
        table.add_column(column)
    for row in result["rounds"]:
        rates = [f"{row['rate'][name]:,.0f}" if name in row["rate"] else "-" for name in names]
        best = f"{row['best']} {row['vs_plain'][row['best']]:.2f}"
        table.add_row(row["workload"], *rates, best, str(row["stacking_efficiency"]))
    console.print(table)
    if "server" in result:
        table = Table(title="Server side, seconds", title_justify="left")
        for column in result["server"][0]:
            table.add_column(column)
        for row in result["server"]:
            table.add_row(*(f"{value:g}" for value in row.values()))
        console.print(table)
        console.print(f"190 discriminators on Fashion-MNIST: {result['discriminators']}")
    if result.get("rivals"):
        console.print("\n".join(rivals_table(result["rivals"])))
