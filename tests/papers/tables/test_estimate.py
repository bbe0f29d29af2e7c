"""How long a plan will take, with a step that takes a second."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.core.errors import DataCorrupt
from fedbench.engine.hardware import client_bytes
from fedbench.engine.setup import Setup
from fedbench.papers import estimate, plan, spec
from fedbench.papers.recorded import StoredTable
from fedbench.papers.selection import Selection
from fedbench.papers.store import Provenance, TableResult
from fedbench.runs import estimate as run_times
from fedbench.runs.fingerprint import machine

ROWS = [
    {"label": "FedAvg", "overrides": ["method=fedavg"]},
    {"label": "FedRep", "overrides": ["method=fedrep", "method.head_epochs=3", "method.body_epochs=2"]},
]


def planned(tmp_path: Path, rows: list[dict[str, object]]) -> plan.Plan:
    """Two clients of 50 training samples each on synthetic data, ten rounds, scored in five of them."""
    base = ["dataset=synthetic", "dataset.train=100", "dataset.test=40", "partition=homo", "model=mlp"]
    base += ["partition.num_clients=2", "protocol=quick", "protocol.rounds=10", "protocol.eval_every=2"]
    base += ["protocol.local.batch_size=10", "protocol.test.sets=local", "protocol.test.fraction=0.5"]
    content = {"name": "toy", "title": "Toy", "paper": "fedcollab", "table": "T1", "seeds": 1, "base": base}
    column = {"label": "here", "overrides": []}
    table = spec.parse_spec({**content, "metrics": [{"name": "acc"}], "rows": rows, "columns": [column]})
    return plan.make(table, Selection(overrides=(f"runs_dir={tmp_path}",)))


def test_each_client_is_scored_on_the_test_set_of_all_and_on_its_own_samples_to_validate(tmp_path: Path) -> None:
    """Ten rounds, scored in five of them and untrained: all 40 test samples, and a fifth of 50."""
    overrides = ["protocol.test.sets=global", "protocol.test.pool=false", "protocol.test.fraction=0"]
    made = planned(
        tmp_path, [{"label": "FedAvg", "overrides": ["method=fedavg", *overrides, "protocol.test.val_fraction=0.2"]}]
    )
    job = made.jobs[-1]
    setup = estimate.ResourceEstimate(made).setup(job.config)
    assert estimate.scored_batches(setup, job.config) == pytest.approx((1 + 5) * 2 * (40 + 10) / 10)


def test_what_clients_adapt_before_each_scoring_counts(tmp_path: Path) -> None:
    rows = [["method=fedbabu", "method.tune_epochs=1", f"protocol.score={score}"] for score in ("received", "trained")]
    made = planned(tmp_path, [{"label": str(row), "overrides": row} for row in rows])
    adapting, never = (
        estimate.client_steps(estimate.ResourceEstimate(made).setup(job.config), job.config)
        for job in (entry.jobs[0] for entry in made.cells)
    )
    assert adapting - never == (1 + 5) * (4 + 4)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods whose steps were timed."""
    methods: list[str] = []

    def pace(setup: Setup, _: object) -> float:
        methods.append(type(setup.method).__name__)
        return 1.0

    monkeypatch.setattr(run_times, "pace", pace)
    return methods


def test_steps_of_every_stage_and_a_third_for_what_is_scored(tmp_path: Path, timed: list[str]) -> None:
    seconds = []
    for rows in ([ROWS[0]], ROWS):
        made = planned(tmp_path, rows)
        found = estimate.estimate(made, made.missing())
        assert (found.unknown, found.finished, found.timed) == ({}, 0, len(made.missing()))
        seconds.append(found.seconds)
    setup = run_times.build(made.jobs[-1].config)
    assert setup.protocol.rounds == 10
    sizes = setup.population.sizes.tolist()
    epoch = sum(-(-int(size) // 10) for size in sizes)  # steps of all clients
    samples = sum(int(setup.federation.sets[name].sizes.sum()) for name in setup.federation.sets) - sum(sizes)
    scored = (1 + 5) * samples / 10 / 3  # untrained, too
    plain = 10 * epoch * setup.protocol.local.epochs + scored
    assert seconds == pytest.approx([plain, plain + 10 * epoch * (3 + 2) + scored]), "no Local: no metric reads it"
    assert timed == ["FedAvg", "FedAvg"], "once a data set and model, whatever the method"


def test_a_step_takes_the_mean_over_the_kinds_of_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paces = iter((1.0, 5.0))
    monkeypatch.setattr(run_times, "pace", lambda *_: next(paces))
    made = planned(tmp_path, [ROWS[0]])
    job = made.jobs[-1]
    each = estimate.ResourceEstimate(made)
    setup = each.setup(job.config)
    steps = estimate.client_steps(setup, job.config) + estimate.scored_batches(setup, job.config) / 3
    monkeypatch.setattr(type(setup), "modalities", property(lambda self: (self, self)))
    assert each._timed(job.config, setup) == pytest.approx(3.0 * steps)


def test_why_cells_cannot_be_built_is_said_once(
    tmp_path: Path, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def build(config: object) -> None:
        tried.append(config)
        raise DataCorrupt("no such file")

    monkeypatch.setattr(run_times, "build", build)
    made = planned(tmp_path, ROWS)
    assert list(estimate.estimate_lines(made, made.missing(), 2)) == ["cannot be built: all 2 cells: no such file"]
    assert len(tried) == 1, "the same data, partition and network are not tried again"


def test_it_says_that_a_study_has_no_estimate(tmp_path: Path) -> None:
    made = planned(tmp_path, ROWS)
    studies = [dataclasses.replace(job, study="cost") for job in made.missing()]
    assert list(estimate.estimate_lines(made, studies, 1)) == ["time: no estimate of rows with `study:`"]
    assert list(estimate.estimate_lines(made, [], 1)) == []


def test_a_method_that_does_not_fit_the_network_is_named_before_it_runs(tmp_path: Path, timed: list[str]) -> None:
    made = planned(tmp_path, [{"label": "FedBN", "overrides": ["method=fedbn"]}, *ROWS])
    reason, time, *_ = estimate.estimate_lines(made, made.missing(), 1)
    assert reason.startswith("cannot be built: 1 cell (FedBN / here): method.private=[@norm] matches none of")
    assert time.endswith("(2 runs by a step timed here, without servers)"), "the other two"


def test_cells_are_named_by_column_or_one_by_one(tmp_path: Path) -> None:
    made = planned(tmp_path, ROWS)
    first, second = made.spec.columns[0], dataclasses.replace(made.spec.columns[0], label="there")
    more = tuple(dataclasses.replace(entry, column=second) for entry in made.cells)
    two = dataclasses.replace(
        made, spec=dataclasses.replace(made.spec, columns=(first, second)), cells=(*made.cells, *more)
    )
    assert two.named([*made.cells, more[0]]) == "3 cells (all of here; FedAvg / there)"
    assert two.named(two.cells) == "all 4 cells"
    assert two.of_runs([made.cells[1].jobs[0].identity]) == "2 cells (FedRep / here; FedRep / there)"


# ---- each number once more, by loops


UNEVEN = ["partition=dir", "partition.num_clients=3", "protocol.rounds=7", "protocol.eval_every=3", "protocol.cohort=2"]
TUNED = ["method=fedbabu", "method.tune_epochs=2", *UNEVEN, "protocol.local.epochs=3"]


def batches(size: int) -> int:
    return -(-size // 10)


def test_what_runs_take_by_loops(tmp_path: Path, timed: list[str]) -> None:
    """Steps of cohorts of two in seven rounds, scored after 0, 3, 6 and 7 of them, when clients adapt."""
    made = planned(tmp_path, [{"label": "FedBABU", "overrides": [*TUNED, "save_models=true"]}])
    (job,) = made.cells[0].jobs
    each = estimate.ResourceEstimate(made)
    each.add(job)
    setup = each.setup(job.config)
    sizes = [int(size) for size in setup.population.sizes]
    assert len(set(sizes)) > 1
    epoch = sum(map(batches, sizes))
    steps = 7 * 2 / 3 * 3 * epoch
    adapted = 4 * 2 * epoch
    assert estimate.client_steps(setup, job.config) == pytest.approx(steps + adapted)
    assert estimate.client_steps(setup, job.config, scored=False) == pytest.approx(steps)
    tests = sum(len(setup.scored.indices("local", k)) for k in range(3))
    scored = 4 * tests / 10
    assert each.seconds == pytest.approx(steps + adapted + scored / 3)
    model = sum(leaf.numel() * leaf.element_size() for leaf in setup.task.fresh().state_dict().values())
    x = setup.federation.x
    pixels = x.numel() * x.element_size()
    assert each.memory == estimate.PROCESS + pixels + 4 * model + 2 * 2 * model + client_bytes(setup)
    assert each.kept == pytest.approx(estimate.LOGS + estimate.ROUND * (3 + 3) + 8 * 9 + 4 * model)
    each.add(job)
    assert each.kept == pytest.approx(2 * (estimate.LOGS + estimate.ROUND * 6 + 72 + 4 * model)), "of both runs"
    assert each.memory == estimate.PROCESS + pixels + 8 * model + client_bytes(setup), "of the larger run"
    assert (each.checkpoint, each.timed, each.finished) == (4 * model, 2, 0)


@pytest.mark.parametrize(("score", "received", "trained"), [("received", 4, 0), ("trained", 0, 7), ("both", 4, 7)])
def test_how_often_who_is_scored(tmp_path: Path, score: str, received: int, trained: int) -> None:
    report = ["protocol.report=best_test"] if score != "received" else []
    made = planned(
        tmp_path, [{"label": "A", "overrides": ["method=fedavg", *UNEVEN, f"protocol.score={score}", *report]}]
    )
    config = made.cells[0].jobs[0].config
    setup = estimate.ResourceEstimate(made).setup(config)
    samples = sum(len(setup.scored.indices("local", k)) for k in range(3))
    found = estimate.scored_batches(setup, config)
    assert found == pytest.approx((received + trained * 2 / 3) * samples / 10)


def test_the_steps_of_a_method_s_own_are_timed_and_its_scoring_is_fedavgs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces, told = {"FedBABU": 5.0, "FedAvg": 2.0}, []

    def pace(setup: Setup, _: object) -> float:
        told.append(type(setup.method).__name__)
        return paces[told[-1]]

    monkeypatch.setattr(run_times, "pace", pace)
    made = planned(tmp_path, [{"label": "FedBABU", "overrides": TUNED}])
    (job,) = made.cells[0].jobs
    each = estimate.ResourceEstimate(made)
    setup = each.setup(job.config)
    epoch = sum(batches(int(size)) for size in setup.population.sizes)
    tests = sum(len(setup.scored.indices("local", k)) for k in range(3))
    expected = 7 * Fraction(2, 3) * 3 * epoch * 5 + (4 * 2 * epoch + Fraction(4 * tests, 30)) * 2
    for _ in range(2):
        assert each.timed_as_it_is(job.config) == pytest.approx(float(expected))
    assert told == ["FedBABU", "FedAvg"], "once each"


@pytest.mark.slow
def test_seeds_that_are_known_tell_their_mean(tmp_path: Path, timed: list[str]) -> None:
    """Those of the run's own row, and only of those with seconds."""
    made = plan.make(
        dataclasses.replace(planned(tmp_path, ROWS).spec, seeds=3), Selection(overrides=(f"runs_dir={tmp_path}",))
    )
    first, second = made.cells
    rows: dict[str, Any] = {first.jobs[0].key: {"seconds_total": "10"}, first.jobs[1].key: {"seconds_total": "16"}}
    rows |= {second.jobs[0].key: {"seconds_total": ""}}
    table = TableResult(made.spec, (), Provenance(machine=machine()))
    known = dataclasses.replace(made, stored=StoredTable(table, rows))
    total = estimate.estimate(known, [first.jobs[2]])
    assert (total.seconds, total.finished, total.timed) == (13.0, 1, 0)
    elsewhere = dataclasses.replace(table, provenance=Provenance(machine="another"))
    moved = dataclasses.replace(made, stored=StoredTable(elsewhere, rows))
    for plan_of_it, job in ((known, second.jobs[2]), (moved, first.jobs[2])):
        other = estimate.estimate(plan_of_it, [job])
        assert (other.finished, other.timed) == (0, 1)


def test_what_is_told_on_either_side_of_what_is_free(
    tmp_path: Path, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = planned(tmp_path, ROWS)
    monkeypatch.setattr(estimate, "contention", lambda: 3.0)
    total = estimate.estimate(made, made.missing())
    start, each = estimate.START, estimate.STARTED
    assert total.of_a_call(2) == pytest.approx(3 * (start + (total.seconds + each * total.timed) / 2))
    disk = total.kept + 2 * total.checkpoint
    assert len(list(estimate.estimate_lines(made, made.missing()[:1], 1))) == 3, "of one run as well"
    for free, room, short in ((2 * total.memory, disk, False), (2 * total.memory - 1, disk - 1, True)):
        monkeypatch.setattr(estimate, "free_bytes", lambda _, free=free: free)
        monkeypatch.setattr(estimate.shutil, "disk_usage", lambda _, room=room: SimpleNamespace(free=room))
        told = list(estimate.estimate_lines(made, made.missing(), 2))
        assert ["too little" in line for line in told] == [False, short, short]
        assert told[0].endswith("2 at once (2 runs by a step timed here, without servers)")
        assert told[0].startswith(f"time: about {estimate.rough_seconds(total.of_a_call(2))} on")
        assert told[1].startswith(f"memory: about {estimate.human_bytes(2 * total.memory)}, ")
        assert told[1].endswith(" are free" + " (too little: jobs=1 takes least)" * short)
        kept, most = (estimate.human_bytes(each) for each in (total.kept, total.kept + 2 * total.checkpoint))
        assert told[2].startswith(f"disk: about {kept} in {tmp_path}, {most} with ")
