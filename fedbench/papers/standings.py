"""The standings of a leaderboard: rows compared over seeds, for its Markdown page and the result page.

Rows are compared over their common seeds (same partition, initial weights and batches) by Student's t, with p adjusted
by Holm over a federation's comparisons of one kind. A row is among the best if it is not significantly below the
highest mean of the rows with most seeds. It is above a reference (Local, a fine-tuned FedAvg) if the difference is
significant. A seed counts only if all rows have run it, so a board that is stopped within a seed is fair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.files import write_text
from fedbench.core.tables import grouped, markdown
from fedbench.metrics import hurt, worst
from fedbench.papers.boards import BOARD, FINAL, ROWS, Line
from fedbench.papers.comparisons import LEAST_PAIRS, holm, t_test
from fedbench.papers.equivalence import LEVEL
from fedbench.papers.store import Array, files_of
from fedbench.papers.text import DASH
from fedbench.runs.progress import UNSEEN
from fedbench.sample_metrics import METRICS, known

PAGE = "README.md"
NOT_RUN = "not run to its end"  # a row without a failure and without a score
HURT = 1.0  # points by which a client must be worse than under a reference to count as hurt


@dataclass(frozen=True)
class Standing:
    """A row in a federation."""

    row: str
    trial: str = ""  # the chosen values, or the best so far
    scores: Mapping[int, float] = field(default_factory=dict)  # seed -> test accuracy, percent
    half: float = math.nan  # half of the 95 % interval of the mean over seeds
    best: bool | None = None  # not significantly below the leader; None: too few seeds
    above: Mapping[str, bool] = field(default_factory=dict)  # other reference -> whether the row is above it
    trials: Mapping[int, float] = field(default_factory=dict)  # -> validation accuracy at the first rung; nan: failed
    chosen: int = 0  # its number
    reached: int = 0  # seeds that reached Local's accuracy
    megabytes: float = math.nan  # traffic until then, up and down; mean over these seeds
    seconds: float = math.nan
    worst: float = math.nan  # mean of the worst tenth of clients, percent
    hurt: Mapping[str, float] = field(default_factory=dict)  # reference -> clients hurt, percent
    # accuracy of unseen clients, percent: as received, after 1 and 5 epochs; nan: a final run has nothing for them
    unseen: tuple[float, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)  # of protocol.metrics: mean over clients and seeds
    lacks: str = ""  # why it has no score
    # clients with an accuracy of all, on test and on validation samples, in the run that scored the fewest; "" if all
    fewer: tuple[str, str] = ("", "")

    @property
    def mean(self) -> float:
        """Mean over seeds; nan without any."""
        return float(np.mean([*self.scores.values()])) if self.scores else math.nan


@dataclass(frozen=True)
class Table:
    """A federation: its rows, those with the highest means first."""

    label: str
    setting: str
    seeds: tuple[int, ...]
    lines: tuple[Standing, ...]
    declared: int  # number of seeds that the board declares

    @property
    def ran(self) -> str:
        """The seeds, and those that are missing."""
        missing = sum(line.lacks == NOT_RUN for line in self.lines)
        further = [f"{len(self.seeds)} of {self.declared} declared"] if len(self.seeds) < self.declared else []
        further += [f"without {missing} of {len(self.lines)} rows"] if missing else []
        listed = ", ".join(map(str, self.seeds)) or "none yet"
        return f"{listed} ({'; '.join(further)})" if self.seeds and further else listed


@dataclass(frozen=True)
class Standings:
    """A board as it stands."""

    name: str
    title: str
    board: Mapping[str, Any]  # as declared
    hash: str
    machine: str
    federations: tuple[Table, ...]
    runs: int
    cost: float  # hours by the runs' clocks, all trials counted


def board_folders(results: Path | str) -> list[Path]:
    """Return every board below `results` that has a page, in order of name; one whose runs go on has none yet."""
    return sorted(file.parent for file in (Path(results) / "leaderboard").glob(f"*/{PAGE}"))


def read_standings(folder: Path) -> Standings:
    """Return what is recorded in `folder`, judged. Raises Damaged if a file is not as it was written."""
    files = files_of(folder, "board")
    made, lines = files.json(BOARD), files.csv(ROWS)
    board = made["board"]
    federations = [_federation(board, each, lines) for each in board["federations"]]
    hours = sum(float(line["seconds_total"] or 0) for line in lines) / 3600
    named = board["name"], board["title"], board, made["hash"], made["machine"]
    return Standings(*named, tuple(federations), len(lines), hours)


def _federation(board: Mapping[str, Any], federation: Mapping[str, Any], lines: Sequence[Line]) -> Table:
    mine = [line for line in lines if line["federation"] == federation["label"]]
    ended = grouped((line["row"], line["seed"]) for line in mine if line["stage"] == FINAL)
    whole = set.intersection(*map(set, ended.values())) if ended else set()
    here = [line for line in mine if line["stage"] != FINAL or line["seed"] in whole]
    clients = {row: _clients(here, row) for row in dict.fromkeys(line["row"] for line in here)}
    found = [_standing(board, row, here, clients) for row in clients]
    found.sort(key=lambda each: (-each.mean, 0) if each.scores else (math.inf, -max(_finite(each), default=0)))
    seeds = sorted({seed for each in found for seed in each.scores})
    setting = " ".join(federation["overrides"])
    judged = tuple(_judged(found, board["references"]))
    return Table(federation["label"], setting, tuple(seeds), judged, len(board["seeds"]))


def _clients(lines: Sequence[Line], row: str) -> dict[int, Array]:
    """Return the accuracies [N] of a row's clients by seed."""
    own = [line for line in lines if line["row"] == row and line["stage"] == FINAL and line.get("clients")]
    return {int(line["seed"]): np.array(line["clients"].split(), dtype=float) for line in own}


def _standing(
    board: Mapping[str, Any], row: str, lines: Sequence[Line], clients: Mapping[str, Mapping[int, Array]]
) -> Standing:
    own = [line for line in lines if line["row"] == row]
    first = f"{board['rungs'][0]} rounds"
    trials = {int(line["trial"]): float(line["acc_on_val"] or "nan") for line in own if line["stage"] == first}
    finals = [line for line in own if line["stage"] == FINAL]
    furthest = [line for line in own if line["stage"] == own[-1]["stage"]]  # as stages follow each other
    found = [(line["trial"], float(line["acc_on_val"] or "-inf")) for line in furthest]
    leading = max(furthest, key=lambda line: _mean([value for trial, value in found if trial == line["trial"]]))
    scores = {int(line["seed"]): float(line["acc"]) for line in finals if line["acc"]}
    failed = (line["failure"] for line in furthest if line["trial"] == leading["trial"] and line["failure"])
    reached = [line for line in finals if line.get("rounds_to_local")]
    harmed = {
        name: [
            hurt(mine / 100, theirs[seed] / 100, HURT / 100) for seed, mine in clients[row].items() if seed in theirs
        ]
        for name, theirs in clients.items()
        if name in board["references"] and name != row
    }
    return Standing(
        row,
        leading["values"],
        scores,
        t_test(np.array([*scores.values()]))[1] if len(scores) > 1 else math.nan,
        trials=trials,
        chosen=int(leading["trial"]),
        reached=len(reached),
        megabytes=_mean([float(line["bytes_to_local"]) / 1e6 for line in reached]),
        seconds=_mean([float(line["seconds_to_local"]) for line in reached]),
        worst=_mean([worst(each) for each in clients[row].values()]),
        hurt={name: 100 * _mean(each) for name, each in harmed.items() if each},
        unseen=tuple(_mean([float(line.get(name) or "nan") for line in finals if line["acc"]]) for name in UNSEEN),
        measures={
            name: _mean([float(line[name]) for line in finals if line[name]])
            for name in known({column for line in finals for column in line if line[column]})
        },
        lacks="" if scores else next(failed, NOT_RUN),
        fewer=(
            _fewest((int(np.isfinite(each).sum()), len(each)) for each in clients[row].values()),
            _fewest(
                (int(each["clients_on_val"]), int(each["of_clients"])) for each in own if each.get("clients_on_val")
            ),
        ),
    )


def _fewest(counts: Iterable[tuple[int, int]]) -> str:
    """Return " (9 of 10 clients)" for the smallest of (clients with an accuracy, all); "" if all have one."""
    scored, every = min(counts, default=(0, 0), key=lambda each: each[0] - each[1])
    return f" ({scored} of {every} clients)" if scored < every else ""


def _finite(line: Standing) -> list[float]:
    """The trials' validation accuracies at the first rung, without failed trials."""
    return [each for each in line.trials.values() if math.isfinite(each)]


def _judged(found: Sequence[Standing], references: Sequence[str]) -> list[Standing]:
    """Return the rows, highest mean first, with their comparisons with the best and the references."""
    scored = [each for each in found if each.scores]
    most = max((len(each.scores) for each in scored), default=0)  # a mean over the seeds that were left leads nothing
    best = next((each for each in scored if len(each.scores) == most >= LEAST_PAIRS), None)
    among: dict[str, bool] = {}
    if best is not None:
        others = [each for each in scored if each is not best and len(_paired(best, each)) >= LEAST_PAIRS]
        tests = [_test(best, each) for each in others]
        told = zip(others, tests, holm([p for _, p in tests]), strict=True)
        among = {best.row: True, **{each.row: p > LEVEL or mean < 0 for each, (mean, _), p in told}}
    pairs = [(base, each) for base in scored if base.row in references for each in scored if each is not base]
    # Two references make one comparison, whichever of them is asked about.
    compared = {frozenset((base.row, each.row)): _test(each, base)[1] for base, each in pairs}
    adjusted = dict(zip(compared, holm([*compared.values()]), strict=True))
    above: dict[str, dict[str, bool]] = {}
    for base, each in pairs:
        told_apart = adjusted[frozenset((base.row, each.row))] <= LEVEL
        above.setdefault(each.row, {})[base.row] = told_apart and _test(each, base)[0] > 0
    return [replace(each, best=among.get(each.row), above=above.get(each.row, {})) for each in found]


def _paired(one: Standing, other: Standing) -> list[float]:
    """Return the differences over the seeds that both have."""
    return [one.scores[seed] - other.scores[seed] for seed in sorted(one.scores.keys() & other.scores.keys())]


def _test(one: Standing, other: Standing) -> tuple[float, float]:
    """Return (mean difference, p) over the seeds that both have; p is 1 if these are too few."""
    gaps = np.array(_paired(one, other))
    if len(gaps) < LEAST_PAIRS:
        return 0.0, 1.0
    return t_test(gaps)[::2]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


# As a page.

HEADINGS = (
    "method",
    "test accuracy %",
    "best",
    "not above",
    "validation %: default → tuned",
    "of all trials",
    "chosen",
    "to Local's accuracy",
    "worst tenth %",
    "hurt %",
    "unseen %",
)


def cells(line: Standing, references: Sequence[str], seeds: int) -> list[str]:
    """Return the texts of a row, in the order of `HEADINGS`."""
    if not (finite := _finite(line)):
        return [line.row, line.lacks.partition(":")[0], *[DASH] * (len(HEADINGS) - 2)]
    failed = len(line.trials) - len(finite)
    spread = f"{min(finite):.1f} to {max(finite):.1f}" + (f", {failed} failed" if failed else "")
    shown = {number: f"{each:.1f}" if math.isfinite(each) else "failed" for number, each in line.trials.items()}
    tuned = [f"{shown.get(0, DASH)} → {shown.get(line.chosen, DASH)}{line.fewer[1]}", spread, line.trial]
    if not line.scores:
        return [line.row, line.lacks.partition(":")[0], DASH, DASH, *tuned, *[DASH] * 4]  # rows.csv has the rest
    reached = "" if line.reached == len(line.scores) else f" ({line.reached} of {len(line.scores)} seeds)"
    few = "" if len(line.scores) == seeds else f" ({len(line.scores)} of {seeds} seeds)"
    below = ", ".join(name for name in references if name != line.row and not line.above.get(name))
    return [
        line.row,
        f"{line.mean:.2f}" + (f" ± {line.half:.2f}" if math.isfinite(line.half) else "") + few + line.fewer[0],
        DASH if line.best is None else "●" if line.best else "",
        below if len(line.scores) >= LEAST_PAIRS else DASH,
        *tuned,
        f"{line.megabytes:.1f} MB, {line.seconds:.1f} s{reached}" if line.reached else "not reached",
        f"{line.worst:.1f}",
        ", ".join(f"{line.hurt[name]:.0f}" if name in line.hurt else DASH for name in references),
        ", ".join(f"{each:.1f}" if math.isfinite(each) else DASH for each in line.unseen),
    ]


def rules(drawn: Standings) -> Iterator[str]:
    """Yield sentences on how the numbers are made."""
    board, references = drawn.board, ", ".join(drawn.board["references"])
    rungs, (first, *more) = ", ".join(map(str, board["rungs"])), board["tuning_seeds"]
    further = f", at the last rung also {', '.join(map(str, more))}" if more else ""
    yield "All rows of a seed have the same partition, initial weights, cohorts and batches. Cost is not equalised."
    yield (
        f"Each row has {board['trials']} trials in each federation: its default, and values drawn before any run. The "
        f"better half enters the next rung ({rungs} rounds) by validation accuracy, on seed {first}{further}. "
        "Final runs have other seeds."
    )
    yield f"Final runs have {board['rounds']} rounds. Test samples are read once, after the last round."
    yield "±: half of the 95 % interval of the mean over seeds."
    yield (
        "best ●: no significant difference from the highest mean of the rows with most seeds (paired t-test over "
        f"seeds, Holm, 5 %; one in 20 truly best rows may lack it). {DASH}: fewer than {LEAST_PAIRS} seeds."
    )
    yield f"not above: the references ({references}) that the row does not exceed significantly, by the same test."
    yield "validation: the accuracy of the default and of the chosen trial at the first rung."
    yield "of all trials: the lowest and the highest accuracy there."
    yield (
        "to Local's accuracy: bytes up and down, and seconds, until a final run reaches the validation accuracy of "
        "tuned Local after its last round. Seconds depend on the machine's other work."
    )
    yield "worst tenth: mean accuracy of the worst tenth of clients."
    yield f"hurt: share of clients that are more than {HURT:g} point worse than under {references}."
    yield (
        "unseen: mean accuracy of clients that never took part (protocol.unseen), with the received model and after "
        f"one and five epochs of the method's own adaptation. {DASH}: it has no model for them in a seed; "
        f"unseen_note in {ROWS} says why."
    )
    yield from board["notes"]
    for name, why in board["without"].items():
        yield f"Left out: {name} ({why})."


def draw(folder: Path) -> Standings:
    """Write the page of the board whose rows are in `folder`; return what it shows."""
    drawn = read_standings(folder)
    write_text(folder / PAGE, standings_markdown(drawn))
    return drawn


def standings_markdown(drawn: Standings) -> str:
    """Return the page of a board."""
    text = [f"# {drawn.title}\n"]
    text.append(
        f"Made by `python -m fedbench leaderboard board={drawn.name}`; how to read it: "
        f"[docs/leaderboard.md](../../../docs/leaderboard.md). {drawn.runs} runs, {drawn.cost:.2f} hours of runs "
        f"({drawn.machine}). Declared in `conf/leaderboard/{drawn.name}.yaml` ({drawn.hash})."
    )
    for each in drawn.federations:
        text.append(f"\n## {each.label}\n\n`{each.setting}`, seeds {each.ran}\n")
        names = known({name for line in each.lines for name in line.measures})
        lines = [
            cells(line, drawn.board["references"], len(each.seeds))
            + [f"{line.measures[name]:.2f}" if name in line.measures else DASH for name in names]
            for line in each.lines
        ]
        text.append(markdown([[*HEADINGS, *(METRICS[name].heading for name in names)], *lines]).rstrip())
    text.append("\n## Rules\n")
    text += [f"- {rule}" for rule in rules(drawn)]
    return "\n".join(text) + "\n"
