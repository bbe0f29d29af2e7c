"""The demands of tables as Markdown: their sum, where its seconds are, its largest terms, and what was not measured."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from fedbench.engine.pick.arithmetic import ARITHMETIC_SHARE, BANDWIDTH_SHARE, Peaks
from fedbench.tables.day import Needed
from fedbench.tables.estimate import spell

LARGEST = 8  # terms that are named
COLUMNS = (
    *("table", "values", "seeds", "runs", "shared", "cohort steps"),
    *("PFLOP", "GiB", "step by step", "captured"),
)
SHRINKS = {  # what a term's seconds go to -> what would shrink them, if only by other numbers
    "products": "they are bound by products: TensorFloat-32 or bfloat16 (other numbers), or more GPUs",
    "kernels": "its kernels are too small for the device: more seeds or configurations as rows of one program",
    "drawing": "its mini-batches are drawn on the host: another process that draws the next round's",
    "scoring": "scoring no more often than the protocol asks, or fewer clients (protocol.eval_every)",
    "server": "it is rounds of little work: several configurations at once",
}
NOTES = """\
Modelled: the device. Its seconds are counts over the peaks of its data sheet, of which {arithmetic:.0%} of the
operations and {bandwidth:.0%} of the bandwidth are taken to be reached; the host's are 8 us an operation, or 2.2 us a
kernel in a CUDA graph. Not one of them was measured on a GPU.

Counted: local steps of every client on its partition, clients a round, samples scored; products, operations and kernels
of a step, by running one on the CPU (a method's share over FedAvg's on LeNet5); bytes of weights and layer outputs. A
data set that is not on the machine stands there in outline: its number of samples, shape and classes, labels in equal
shares.

Left out: what happens once before round 0 (FedCollab's discriminators, cluster features), servers that learn (FedGen,
FedIoT, pFedHN), loading, and the tables' studies, which train no federation.

A row has what no row before it has: a configuration that several tables ask for is trained once, and so is its Local.
Seeds are rows of one program. Memory is the largest of any configuration, if all its clients and seeds train at
once; what does not fit trains in chunks.
"""


def drawn(found: Sequence[Needed], device: Peaks, name: str) -> str:
    """The document, for a device called `name`."""
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
        NOTES.format(arithmetic=ARITHMETIC_SHARE, bandwidth=BANDWIDTH_SHARE),
        *(line.rstrip() for line in text.getvalue().strip("\n").splitlines()),
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
            bound = "products" if part.bound_by_arithmetic(device, needed.seeds) else "kernels"
            spent.update({bound: seconds.training, "drawing": seconds.drawing})
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
        lines.append(f"- {table}, {label}: {spell(spent.total())}, {share}: {SHRINKS[cause]}.")
    return lines


def _column(label: str) -> str:
    return label.partition(" / ")[2].partition(" (")[0]
