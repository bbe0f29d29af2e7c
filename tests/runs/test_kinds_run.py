"""Whole runs of two kinds of client: their rows, both readings of who divides the data, CUB's files, and refusals."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.config.compose import compose
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.data.partition import Partition
from fedbench.engine.recording import check
from fedbench.papers import spec
from fedbench.recorders import RECORDERS, parse
from fedbench.runs.building import build, split_data
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.execution import execute
from tests.helpers.labelled_formats import LABELLED
from tests.helpers.tiers import sampled

TWO = [
    "dataset=captioned",
    "dataset.train=120",
    "dataset.test=40",
    "dataset.classes=4",
    "model=small_pair",
    "model.kinds.image.width=8",
    "model.kinds.text.width=8",
    "partition=homo",
    "partition.num_clients=4",
    "protocol=fedsac_cub",
    "protocol.rounds=2",
    "protocol.local.iterations=2",
    "protocol.local.batch_size=8",
    "hardware=cpu",
    "hardware.engine=looped",
    "progress=none",
]


def config(*overrides: str, folder: Path | None = None) -> RunConfig:
    return resolve(compose([*TWO, *overrides, *([] if folder is None else [f"runs_dir={folder}"])]))


@pytest.mark.slow
def test_a_row_and_its_clients_tell_the_kinds_apart(tmp_path: Path) -> None:
    result = execute(config("method=fedsac_multimodal", "protocol.score=both", folder=tmp_path))
    with (result.folder / "clients.csv").open() as handle:
        clients = list(csv.DictReader(handle))
    assert [one["modality"] for one in clients] == ["0", "0", "1", "1"]
    for number, kind in enumerate(("image", "text")):
        own = [float(one["acc"]) for one in clients if one["modality"] == str(number)]
        assert result.row[f"acc_of_{kind}"] == pytest.approx(np.mean(own))
    assert result.row["acc"] == pytest.approx(np.mean([result.row[f"acc_of_{k}"] for k in ("image", "text")]))
    weights = np.load(result.folder / "collaboration.npz")["W"]
    assert weights.shape == (4, 4)
    assert (weights[:2, 2:] > 0).any()


@pytest.mark.slow
def test_worker_processes_give_the_row_that_one_process_does(tmp_path: Path) -> None:
    method = ["method=fedsac_multimodal", "protocol.score=both"]
    alone = execute(config(*method, folder=tmp_path / "looped")).row
    spread = ["hardware.engine=workers", "hardware.workers=2"]
    found = execute(config(*method, *spread, folder=tmp_path / "workers")).row
    for name in ("key", "acc", "acc_of_image", "acc_of_text", "bytes_up", "bytes_down"):
        assert found[name] == alone[name]


def test_where_all_clients_are_alike_rows_are_as_they_were(tmp_path: Path) -> None:
    plain = [each for each in TWO if not each.startswith("model")]
    chosen = ["method=local", "model=cub_cnn", "model.width=8", f"runs_dir={tmp_path}"]
    result = execute(resolve(compose([*plain, *chosen])))
    assert not [name for name in result.row if name.startswith("acc_of_")]
    assert "kind" not in (result.folder / "clients.csv").read_text().splitlines()[0].split(",")


def clients(*overrides: str) -> Partition:
    """The samples of the clients of both kinds."""
    run = config("method=fedavg", *overrides)
    return run.model.dealt(split_data(run)[1])[0]


def test_clients_of_all_kinds_divide_the_data_or_those_of_each_do() -> None:
    together, each = clients(), clients("partition.num_clients=2", "model.divide=each")
    assert len(together) == len(each) == 4
    assert len(np.unique(np.concatenate(together.train + together.val))) == 120
    for one, other in ((0, 2), (1, 3)):
        assert np.array_equal(each.train[one], each.train[other])
    assert len(np.unique(np.concatenate(each.train[:2] + each.val[:2]))) == 120
    setup = build(config("method=fedavg", "partition.num_clients=2", "model.divide=each"))
    kinds = setup.modalities
    assert kinds[0].federation.shape == (3, 16, 16)
    assert kinds[1].federation.shape == (1, 1, 16)
    assert setup.task.modality_of(setup.everyone).tolist() == [0, 0, 1, 1]


def test_networks_dealt_in_turn_read_the_same_samples() -> None:
    given = ["dataset=digits", "dataset.limit=200", "partition=homo", "partition.num_clients=6", "model=mixed"]
    setup = build(resolve(compose([*given, "method=fml"])))
    assert setup.task.modality_of(setup.everyone).tolist() == [0, 1, 2, 3, 0, 1]
    assert len(setup.modalities) == 4
    assert all(each.federation is setup.federation for each in setup.modalities)
    with pytest.raises(ConfigError, match=r"^Ditto .*, but clients have 4 different networks; choose one of"):
        resolve(compose([*given, "method=ditto"]))


def test_keys_tell_networks_and_readings_apart() -> None:
    variants = ([], ["model.divide=each"], ["model.clients=[1,3]"], ["model.kinds.text.vocabulary=300"])
    assert len({config("method=fedavg", *each).key for each in variants}) == 4


SEVERAL = {"classifier_cosine", "collaboration", "update_variance"}


@pytest.mark.slow
def test_recorders_look_at_what_clients_of_all_kinds_have(tmp_path: Path) -> None:
    """The matrix of the method and the classifier; any other would meet leaves that half of the clients lack."""
    run = config("method=fedsac_multimodal", f"record=[{','.join(SEVERAL)}]", folder=tmp_path)
    arrays = execute(run).arrays
    assert arrays["record/classifier_cosine/value"].shape == (1, 4, 4, 4)
    assert all(np.isfinite(arrays[f"record/{name}/value"]).all() for name in SEVERAL)
    setup = build(run)
    for name in {*RECORDERS} - SEVERAL:
        with pytest.raises(ConfigError, match=f"^record={name} compares clients of one modality, here are 2"):
            check(parse([name], 1)[0], setup)


ROWS = [row.label for row in spec.load_spec("fedsac_t2").rows]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_table_2_runs_on_files_of_cub(row: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    LABELLED["cub"](tmp_path, rng.permutation(np.arange(160) % 200), np.arange(40))
    table = spec.load_spec("fedsac_t2")
    chosen = next(each for each in table.rows if each.label == row)
    small = [
        f"dataset.root={tmp_path}",
        "dataset.partial=true",
        "dataset.size=16",
        "protocol.rounds=1",
        "protocol.local.iterations=1",
        "protocol.local.batch_size=4",
        "hardware=cpu",
        "hardware.engine=looped",
        "progress=none",
        f"runs_dir={tmp_path / 'runs'}",
    ]
    overrides = [*table.base, *table.columns[0].overrides, *chosen.overrides, *small]
    result = execute(resolve(compose(overrides)))
    assert result.row["clients"] == 8
    assert {"acc_of_image", "acc_of_text"} <= set(result.row)


REFUSED: dict[str, tuple[list[str], str]] = {
    "kinds without clients": (["method=fedavg", "partition.num_clients=1"], "modality 'text' has no client"),
    "numbers that do not add up": (["method=fedavg", "model.clients=[1,2]"], "are 3, the federation has 4"),
    "a number too many": (["method=fedavg", "model.clients=[1,2,1]"], "a number for each of 2 modalities"),
    "heads of unequal width": (
        ["method=fedavg", "model.kinds.text.width=16"],
        r"\[4, 8\] and \[4, 16\].*one width",
    ),
    "a wrong key of a network": (["method=fedavg", "+model.kinds.text.size=3"], "size"),
    "a wrong value of a network": (
        ["method=fedavg", "model.kinds.text.width=1"],
        "model.kinds.text.width must",
    ),
    "a network that there is not": (["method=fedavg", "model.kinds.text.name=textnn"], "textcnn"),
    "data without captions": (["method=fedavg", "dataset=synthetic"], "captions"),
}


@pytest.mark.parametrize("case", sampled(REFUSED, every=3))
def test_bad_input_is_refused_in_one_line(case: str) -> None:
    overrides, reason = REFUSED[case]
    with pytest.raises(FedbenchError, match=reason) as error:
        build(config(*overrides))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (["method=fedsac"], "FedSaC compares or averages models leaf by leaf"),
        (
            ["method=per_kind", "method/base=fedcollab"],
            "PerKind runs FedCollab, which prepares with the data",
        ),
    ],
)
def test_a_method_that_cannot_is_refused_before_any_data_is_read(method: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*2 different networks.*fedsac_multimodal.*per_kind") as error:
        config(*method)
    assert "\n" not in str(error.value)


def test_one_kind_alone_is_no_kinds() -> None:
    from fedbench.models.modalities import Kinds

    given: list[Any] = [
        {},
        {"image": {"name": "mlp"}},
        {"head": {"name": "mlp"}, "b": {"name": "mlp"}},
        {"a": 3, "b": 4},
    ]
    for kinds in given:
        with pytest.raises(FedbenchError, match=r"model\.kinds"):
            Kinds(kinds=kinds)


def test_samples_that_a_client_alters_are_on_one_client_only() -> None:
    altered = dataclasses.replace(clients(), rotation=np.zeros(4))
    with pytest.raises(FedbenchError, match="one client only"):
        altered.repeated(2)
