"""What tables take is added up once for each configuration, on data that need not be here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fedbench.cli import reproduce
from fedbench.config.compose import compose
from fedbench.engine.pick.arithmetic import DEVICES, Peaks
from fedbench.runs.config import resolve
from fedbench.tables import day, spec
from fedbench.tables.cell_config import Wish
from fedbench.tables.demand import Demand
from fedbench.tables.scale import Scale

BASE = [
    *(
        "dataset=synthetic",
        "dataset.train=100",
        "dataset.test=40",
        "partition=homo",
        "partition.num_clients=4",
    ),
    *("model=mlp", "protocol=quick", "protocol.rounds=10", "protocol.eval_every=2", "protocol.cohort=2"),
    *("protocol.local.batch_size=10", "protocol.test.sets=local", "protocol.test.fraction=0.2"),
]
SLOW = Peaks(float32=1e6, tf32=1e7, bandwidth=1e12, memory=1e12)  # bound by its arithmetic


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))


def table(*rows: str) -> spec.TableSpec:
    lines = [{"label": row, "overrides": f"method={row}".split()} for row in rows]
    content = {"name": "toy", "title": "Toy", "paper": "fedcollab", "table": "T1", "seeds": 3, "base": BASE}
    column = {"label": "here", "overrides": []}
    return spec.parse({**content, "metrics": [{"name": "acc"}], "rows": lines, "columns": [column]})


def demand(*overrides: str) -> Demand:
    (found,) = Demand.of(resolve(compose([*BASE, "method=fedavg", *overrides])))
    return found


def test_steps_and_samples_are_those_of_the_run() -> None:
    """Four clients of 35 samples of both splits, 28 of them trained on in three steps an epoch."""
    found = demand()
    assert (found.rounds, found.cohort, found.evaluations) == (10, 2, 5)
    epochs = resolve(compose(BASE)).protocol.local.epochs
    assert found.cohort_steps == 10 * 3 * epochs
    assert found.client_steps == 2 * found.cohort_steps
    assert found.scored == 5 * 4 * 7
    assert found.work.flops == pytest.approx(demand("protocol.local.batch_size=5").work.flops * 2)


def test_what_clients_train_before_they_are_scored_is_counted() -> None:
    """FedBABU: one epoch of three steps for each of four clients, at five evaluations."""
    found, plain = demand("method=fedbabu", "method.tune_epochs=1"), demand()
    assert found.client_steps == plain.client_steps + 5 * 4 * 3
    assert found.cohort_steps == plain.cohort_steps + 5 * 3
    assert demand("method=fedbabu", "protocol.score=trained").client_steps == plain.client_steps


def test_each_kind_of_client_is_counted_on_its_network() -> None:
    chosen = ["dataset=captioned", "model=small_pair", "partition=homo", "partition.num_clients=4"]
    both = Demand.of(
        resolve(compose([*BASE, "method=fedavg", *chosen, "dataset.train=100", "dataset.test=40"]))
    )
    assert [each.cohort for each in both] == [1, 1]
    assert both[0].work.flops != both[1].work.flops
    assert sum(each.client_steps for each in both) == demand().client_steps


def test_seeds_are_rows_of_one_program_while_that_is_cheaper() -> None:
    found = demand()
    host, products = (
        {n: found.seconds(peaks, n, captured=True).training for n in (1, 5)}
        for peaks in (DEVICES["h200"], SLOW)
    )
    assert host[5] == host[1], "the same graphs"
    assert products[5] == pytest.approx(5 * products[1])
    assert found.bound(SLOW, 1) == "products"
    assert found.bound(dataclasses.replace(SLOW, float32=1e15, bandwidth=1e3), 1) == "memory"
    assert found.bound(DEVICES["h200"], 1) == "kernels"
    crammed = dataclasses.replace(DEVICES["h200"], memory=found.memory(1))
    assert found.seconds(crammed, 1, captured=True).training > host[1], "in chunks"


def test_a_configuration_is_counted_once_and_so_is_its_local() -> None:
    first, second = table("fedavg", "fedprox"), table("fedavg", "local", "ditto")
    found = day.needed([first, second], Wish(Scale("paper")))
    assert list(found[0].demands) == ["fedavg / here", "fedavg / here (Local)", "fedprox / here"]
    assert list(found[1].demands) == ["ditto / here"]
    assert [each.shared for each in found] == [0, 2]
    assert [each.seeds for each in found] == [3, 3]


def test_first_rounds_in_common_are_counted_once() -> None:
    shares = [f"pfedsim method.rho={rho}" for rho in (0.5, 0.3, 0.9, 1)]
    (found,) = day.needed([table(*shares)], Wish(Scale("paper")))
    rounds = {label: part.rounds for label, (part,) in found.demands.items()}
    assert [rounds[f"{share} / here"] for share in shares] == [10, 10, 6, 2]
    steps = {label: part.client_steps for label, (part,) in found.demands.items()}
    assert steps[f"{shares[2]} / here"] == pytest.approx(0.6 * steps[f"{shares[0]} / here"])
    scored = {label: (part.evaluations, part.scored) for label, (part,) in found.demands.items()}
    assert scored[f"{shares[2]} / here"] == (3, pytest.approx(0.6 * scored[f"{shares[0]} / here"][1]))


def test_data_that_is_missing_is_outlined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "nothing"))
    chosen = ["protocol=quick", "method=fedavg", "model=lenet5"]
    for dataset, samples in (("cifar10", 50_000), ("tiny_imagenet", 100_000)):
        run = resolve(
            compose(
                [
                    *chosen,
                    f"dataset={dataset}",
                    "partition=homo",
                    "protocol.test.sets=global",
                    "protocol.test.pool=false",
                ]
            )
        )
        clients = Demand.of(run)[0].client_steps / run.protocol.rounds / run.protocol.local.epochs
        assert clients == pytest.approx(samples / run.protocol.local.batch_size, rel=0.02)


def test_the_sum_is_drawn_with_its_terms(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "names", lambda: ["toy"])
    monkeypatch.setattr(spec, "load", lambda _: table("fedavg"))
    assert reproduce.main(["table=all", "--dry-run", "--device", "h200"]) == 0
    out = capsys.readouterr().out
    assert "# Every table on one h200, modelled" in out
    assert "Nothing was measured on a GPU" in out
    (row,) = [line for line in out.splitlines() if line.startswith("| toy ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:6] == ["3", "6", "0", f"{2 * demand().cohort_steps:,.0f}"], "FedAvg and its Local"
    assert "- toy, here: " in out


def test_what_cannot_be_modelled_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["table=all"]) == 2
    assert "add --dry-run" in capsys.readouterr().err
    assert reproduce.main(["table=all", "--dry-run", "--device", "abacus"]) == 2
    assert "abacus" in capsys.readouterr().err
