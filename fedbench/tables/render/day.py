"""The demands of tables as Markdown: their sum, where its seconds are, its largest terms, and what was not measured."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from fedbench.engine.pick.arithmetic import (
    ARITHMETIC_SHARE,
    BANDWIDTH_SHARE,
    CAPTURED_SECONDS,
    EAGER_SECONDS,
    Peaks,
)
from fedbench.tables.day import Needed
from fedbench.tables.demand import AHEAD_SECONDS, DRAW_SECONDS, ROUND_SECONDS
from fedbench.tables.estimate import spell

LARGEST = 8  # terms that are named
COLUMNS = (
    *("table", "values", "seeds", "runs", "shared", "cohort steps"),
    *("PFLOP", "GiB", "step by step", "captured"),
)
SHRINKS = {  # what a term's seconds go to -> what would shrink them, if only by other numbers
    "products": "TensorFloat-32 or bfloat16 (other numbers), or more GPUs",
    "memory": "bfloat16 (other numbers), kernels that join layers, or more GPUs",
    "kernels": "more seeds or configurations as rows of one program",
    "drawing": "a process that lays out the next round's mini-batches",
    "scoring": "a larger protocol.eval_every, which the protocol fixes",
    "server": "several configurations at once",
}
NOTES = """\
- Modelled: the device. Its seconds are counts over the peaks of its data sheet, of which {arithmetic:.0%} of the
  operations and {bandwidth:.0%} of the bandwidth are taken to be reached. Nothing was measured on a GPU.
- Assumed: {eager:.0f} us of the host for an operation, step by step; {captured} us for a kernel in a CUDA graph;
  {server:.0f} ms a round for the server.
- Measured on a CPU: {ahead} us of the host to draw a client's mini-batch, while the device works on the round before,
  and {draw} us to lay it out.
- Counted: local steps of every client on its partition, those before a scoring too; samples scored; products,
  operations and kernels of a step, by running one on the CPU (a method's share over FedAvg's on LeNet5); bytes of
  weights and layer outputs. A data set that is not on the machine stands there in outline: its number of samples, shape
  and classes, labels in equal shares.
- Left out: what happens once before round 0 (FedCollab's discriminators, cluster features), servers that learn (FedGen,
  FedIoT, pFedHN), loading, and studies, which train no federation.
- A row has what no row before it has: a configuration that several tables ask for is trained once, and so are its Local
  and the first rounds that it has in common with one before. Seeds are rows of one program. Memory is the largest of
  any configuration if all its clients and seeds train at once; what does not fit trains in chunks.
"""


def drawn(found: Sequence[Needed], device: Peaks, name: str, command: str) -> str:
    """The document, for a device called `name`; `command` made it."""
    papers, others = ([each for each in found if bool(each.values) == own] for own in (True, False))
    table = Table(*COLUMNS, box=MARKDOWN)
    for column in table.columns[1:]:
        column.justify = "right"
    for part, title in ((papers, "**the papers' tables**"), (others, "**beside them**")):
        for each in part:
            table.add_row(*_row(each.table, [each], device))
        table.add_row(*_row(title, part, device))
    table.add_row(*_row("**all**", found, device))
    text = io.StringIO()
    Console(file=text, width=400, highlight=False, markup=False).print(table)
    lines = [
        f"# Every table on one {name}, modelled",
        "",
        f"`{command}`",
        "",
        NOTES.format(
            arithmetic=ARITHMETIC_SHARE,
            bandwidth=BANDWIDTH_SHARE,
            eager=1e6 * EAGER_SECONDS,
            captured=1e6 * CAPTURED_SECONDS,
            server=1e3 * ROUND_SECONDS,
            ahead=1e6 * AHEAD_SECONDS,
            draw=1e6 * DRAW_SECONDS,
        ),
        text.getvalue().strip("\n"),
        "",
        *_parts(found, device),
        "",
        "Largest terms, captured, and what would shrink them:",
        "",
        *_largest(found, device),
    ]
    unknown = Counter((each.table, why) for each in found for why in each.unknown.values())
    if unknown:
        lines += ["", "Not counted:", ""]
        lines += [f"- {table}: {count} configurations: {why}" for (table, why), count in unknown.items()]
    return "\n".join(lines) + "\n"


def _row(title: str, found: Sequence[Needed], device: Peaks) -> Iterator[str]:
    yield title
    yield str(sum(each.values for each in found))
    yield ", ".join(sorted({str(each.seeds) for each in found if each.demands}))
    yield str(sum(each.runs for each in found))
    yield str(sum(each.seeds * each.shared for each in found))
    yield f"{sum(each.cohort_steps for each in found):,.0f}"
    yield f"{sum(each.petaflop for each in found):,.1f}"
    yield f"{max((each.memory for each in found), default=0) / 2**30:.1f}"
    for captured in (False, True):
        yield spell(sum(each.seconds(device, captured=captured) for each in found))


def _parts(found: Sequence[Needed], device: Peaks) -> list[str]:
    """Where the captured seconds are, and what the seeds' being rows saves."""
    spent = sum((_spent(each, device) for each in found), Counter[str]())
    apart = sum(n.seeds * part.seconds(device, 1, captured=True).total for n in found for part in n.parts)
    saved = spent["products"] * (1 - device.float32 / device.tf32)
    return [
        f"- Captured: {', '.join(f'{name} {spell(value)}' for name, value in spent.most_common())}.",
        f"- In TensorFloat-32 up to {spell(saved)} less, with other numbers.",
        f"- Seeds one after the other instead of as rows: {spell(apart)} in place of {spell(spent.total())}.",
    ]


def _spent(needed: Needed, device: Peaks, label: str = "") -> Counter[str]:
    """Captured seconds by what they go to, of the configurations that begin with `label`."""
    spent: Counter[str] = Counter()
    for where, parts in needed.demands.items():
        if label and _column(where) != label:
            continue
        for part in parts:
            seconds = part.seconds(device, needed.seeds, captured=True)
            spent.update({part.bound(device, needed.seeds): seconds.training, "drawing": seconds.drawing})
            spent.update({"scoring": seconds.scoring, "server": seconds.server})
    return spent


def _largest(found: Sequence[Needed], device: Peaks) -> list[str]:
    """The most expensive columns, with what their seconds go to."""
    terms = {
        (each.table, label): _spent(each, device, label)
        for each in found
        for label in dict.fromkeys(map(_column, each.demands))
    }
    order = sorted(terms, key=lambda term: terms[term].total(), reverse=True)[:LARGEST]
    lines = []
    for table, label in order:
        spent = terms[table, label]
        cause, most = spent.most_common(1)[0]
        share = f"{most / spent.total():.0%} {cause}"
        lines.append(f"- {table}, {label}: {spell(spent.total())}, {share}; less by {SHRINKS[cause]}.")
    return lines


def _column(label: str) -> str:
    return label.partition(" / ")[2].partition(" (")[0]
