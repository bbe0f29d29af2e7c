"""Data that name their clients: tables, arrays, folders and data in memory, and what becomes of each."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.preprocessing import StandardScaler

import fedbench
from fedbench.config.compose import compose
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError, FedbenchError, warn_once
from fedbench.core.files import read_csv
from fedbench.data.dataset import Dataset
from fedbench.data.datasets import own
from fedbench.data.datasets.own import ImageFolder, Npz
from fedbench.data.datasets.table import OwnTable, fitted
from fedbench.data.partition import Partition, make_partition
from fedbench.data.partitions.file import FileSplit
from fedbench.data.partitions.natural import Natural
from fedbench.runs.building import build, split_data
from fedbench.runs.config import from_plain, resolve
from fedbench.runs.execution import client_names
from tests.helpers.tiers import sampled

SHORT = ("method=fedavg", "protocol.rounds=1", "protocol.local.epochs=1", "hardware=cpu", "reference=none")
RNG = np.random.default_rng(0)
SIZES = {"north": 3, "south": 20, "007": 31}
CLIENT = np.repeat(list(SIZES), list(SIZES.values()))
N = len(CLIENT)
X = RNG.normal(size=(N, 4)).astype(np.float32) * [1, 10, 1000, 1e5]
Y = np.where(X[:, 0] + X[:, 1] / 10 > 0, "yes", "no")


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDBENCH_RUNS", str(tmp_path / "runs"))
    warn_once.cache_clear()


def frame(**more: Any) -> pd.DataFrame:
    """The samples as a table."""
    return pd.DataFrame({**{f"x{i}": X[:, i] for i in range(4)}, "site": CLIENT, "ill": Y, **more})


def csv(folder: Path, **more: Any) -> str:
    frame(**more).to_csv(folder / "sites.csv", index=False)
    return str(folder / "sites.csv")


def table(path: str, **roles: Any) -> list[str]:
    given = {"target": "ill", "client": "site", **roles}
    return ["dataset=table", f"dataset.path={path}", *(f"dataset.{role}={column}" for role, column in given.items())]


# ---- the same samples in every form


@pytest.mark.slow
def test_a_table_and_the_same_arrays_give_one_run_to_the_bit(tmp_path: Path) -> None:
    np.savez(tmp_path / "sites.npz", x=X, y=Y, client=CLIENT)
    frame().to_parquet(tmp_path / "sites.parquet")
    forms: list[tuple[list[str], dict[str, Any]]] = [
        (table(csv(tmp_path)), {}),
        (table(str(tmp_path / "sites.parquet")), {}),
        (["dataset=npz", f"dataset.path={tmp_path / 'sites.npz'}"], {}),
        ([], {"data": (X, Y, CLIENT)}),
        ([], {"data": (torch.from_numpy(X), pd.Series(Y), CLIENT.tolist())}),
        ([], {"data": (frame(), "ill", "site")}),
    ]
    runs = [fedbench.run(*SHORT, *given, save_models=True, **more) for given, more in forms]
    for run in runs:
        assert run.row["partition"] == "natural"
        assert run.clients["name"].tolist() == ["007", "north", "south"]
        assert (run.clients["size_train"] + run.clients["size_local"]).tolist() == [31, 3, 20]
        assert run.clients["acc"].tolist() == runs[0].clients["acc"].tolist()
        assert all(torch.equal(leaf, runs[0].models[name]) for name, leaf in run.models.items())
        found = run.predict("south")
        assert 100 * (found.classes == found.y).mean() == run.clients["acc"][2]
    with pytest.raises(FedbenchError, match="unknown client 'nort'; nearest: north"):
        runs[0].predict("nort")
    assert runs[3].folder == runs[4].folder, "the same content is the same run"
    assert runs[3].earlier is False
    assert fedbench.run(*SHORT, data=(X, Y, CLIENT)).earlier
    assert fedbench.run(*SHORT, data=(X + 1, Y, CLIENT)).folder != runs[3].folder
    assert fedbench.run(*SHORT, data=(X, Y, np.where(CLIENT == "007", "008", CLIENT))).folder != runs[3].folder


@pytest.mark.slow
def test_a_sweep_takes_the_same(tmp_path: Path) -> None:
    alone = fedbench.run(*SHORT, data=(X, Y, CLIENT))
    found = fedbench.sweep(*SHORT, data=(X, Y, CLIENT), seed=[0, 1])
    assert found["partition"].tolist() == ["natural"] * 2
    assert found["acc"][0] == alone.row["acc"]
    assert str(alone.folder) in set(found["path"] if "path" in found else found["folder"])


def test_names_are_in_files_and_figures(tmp_path: Path) -> None:
    run = fedbench.run(*SHORT, *table(csv(tmp_path)))
    for file in ("clients.csv", "partition.csv"):
        assert [row["name"] for row in read_csv(run.folder / file)] == ["007", "north", "south"]
    assert run.names == ["007", "north", "south"]
    x = np.random.default_rng(0).normal(size=(60, 4))
    digits = fedbench.run(*SHORT, data=(x, np.arange(60) % 2, np.repeat(["007", "7"], 30)))
    assert digits.clients["name"].tolist() == digits.names == ["007", "7"], "of digits alone too"
    from fedbench.plots.runs import collaboration_matrix

    mixed = fedbench.run(*SHORT, *table(csv(tmp_path)), "method=pfedgraph", "protocol.unseen=1")
    rows = read_csv(mixed.folder / "collaboration.csv")
    assert [[*row] for row in rows] == [["client", "007", "north"]] * 2
    assert [row["client"] for row in rows] == ["007", "north"]
    axes = collaboration_matrix(np.eye(3), names=run.names).axes[0]
    assert sorted(tick.get_text() for tick in axes.get_xticklabels()) == run.names


@pytest.mark.parametrize("where", ["", "train", "test"])
def test_folders_of_folders_are_clients(where: str, tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for split in ("train", "test") if where else ("",):
        for value, client in enumerate(("anna", "bo")):
            for label in ("cat", "dog"):
                folder = root / split / client / label
                folder.mkdir(parents=True)
                for i in range(4):
                    Image.new("RGB", (16, 16), (60 * value, i, 99 if label == "cat" else 5)).save(folder / f"{i}.png")
    data = ImageFolder(path=str(root), size=16).load()
    split = make_partition(resolve(compose(["dataset=images", f"dataset.path={root}"])).partition, data, Protocol(), 0)
    assert client_names(data, split) == ["anna", "bo"]
    for value in range(2):
        assert {int(data.x[i, 0, 0, 0]) for i in [*split.train[value], *split.test[value]]} == {60 * value}
    assert [len(part) for part in split.test] == ([8, 8] if where else [2, 2])
    assert data.classes == 2


def test_a_validation_folder_is_no_client(tmp_path: Path) -> None:
    for split in ("Train", "val", "more"):
        (folder := tmp_path / split / "cat").mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(folder / "0.png")
    with pytest.raises(FedbenchError, match="has the folders Train and val; the names of splits are train and test"):
        ImageFolder(path=str(tmp_path)).load()


class Pairs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        if i >= N:
            raise IndexError
        return torch.from_numpy(X[i]), int(Y[i] == "yes"), str(CLIENT[i])


class Hugging:
    """What is used of a dataset of Hugging Face."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame(self.columns)

    def __len__(self) -> int:
        return len(self.columns[self.column_names[0]])

    def __getitem__(self, key: int | str) -> Any:
        return self.columns[key] if isinstance(key, str) else {name: each[key] for name, each in self.columns.items()}


def loaded(*overrides: str, **more: Any) -> Dataset:
    from fedbench.api import _data

    return resolve(compose([*_data(more.get("data")), *overrides])).dataset.load()


def test_datasets_of_other_libraries(tmp_path: Path) -> None:
    expected = loaded(data=(X, (Y == "yes").astype(int), CLIENT))
    rows = {name: column.tolist() for name, column in frame(ill=(Y == "yes").astype(int)).items()}
    for data in (Pairs(), (Hugging(**rows), "ill", "site")):
        read = loaded(data=data)
        np.testing.assert_array_equal(read.x, expected.x)
        np.testing.assert_array_equal(read.y, expected.y)
        np.testing.assert_array_equal(read.domain, expected.domain)
        assert read.names == ("007", "north", "south")
    images = [Image.new("L", (5, 5), i) for i in range(N)]
    read = loaded(data=(Hugging(picture=images, ill=rows["ill"], site=rows["site"]), "ill", "site"))
    assert read.x[:, 0, 0, 0].tolist() == list(range(N))
    assert read.names == ("007", "north", "south")


# ---- who has what


def given_parts() -> np.ndarray:
    part = np.where(np.arange(N) % 5 == 0, "test", np.where(np.arange(N) % 5 == 1, "val", "train"))
    part[CLIENT == "north"] = "test"
    return part


def test_a_column_says_what_is_for_testing(tmp_path: Path) -> None:
    part = given_parts()
    run = resolve(compose(table(csv(tmp_path, part=part), split="part")))
    data = run.dataset.load()
    split = make_partition(run.partition, data, run.protocol.test, 0)
    assert client_names(data, split) == ["007", "south"], "north has nothing to train on"
    rows = {tuple(x): name for x, name in zip(X.astype(np.float32).tolist(), part, strict=True)}
    for name, lists in (("train", split.train), ("val", split.val), ("test", split.test)):
        found = [rows[tuple(data.x[i, 0, 0].tolist())] for part in lists for i in part]
        assert set(found) == {name}
        assert len(found) == ((part == name) & (CLIENT != "north")).sum()
    for protocol in (Protocol(pool=not run.protocol.test.pool), Protocol(fraction=0.5, val_fraction=0.5)):
        assert make_partition(run.partition, data, protocol, 1).hash == split.hash, "as the data say, whatever"


def test_a_split_file_numbers_the_rows_of_the_user(tmp_path: Path) -> None:
    """Whatever the order in which they are kept: test samples come last, of the data or a fifth of each class."""
    x = np.stack([np.arange(N), np.arange(N) % 7], axis=1).astype(np.float32)
    parts = np.where(np.arange(N) % 4 == 0, "test", "train")
    lists: dict[str, Any] = {
        "train_0": np.arange(20, 30),
        "test_0": np.arange(5),
        "train_1": np.arange(30, 54),
        "test_1": [19, 7],
    }
    np.savez(tmp_path / "split.npz", **lists)
    options: tuple[dict[str, Any], ...] = ({}, {"split": parts})
    for more in options:
        np.savez(tmp_path / "own.npz", x=x, y=Y, **more)
        data = loaded("dataset=npz", f"dataset.path={tmp_path / 'own.npz'}")
        assert data.x[:, 0, 0, 0].tolist() != [*range(N)], "the order is another"
        found = make_partition(FileSplit(path=str(tmp_path / "split.npz")), data, Protocol(), 0)
        for name, rows in lists.items():
            kept = getattr(found, name[:-2])[int(name[-1])]
            assert sorted(data.x[kept, 0, 0, 0].tolist()) == sorted(rows), name
        found.save(tmp_path / "kept.npz")  # which has the data's fingerprint
        assert make_partition(FileSplit(path=str(tmp_path / "kept.npz")), data, Protocol(), 0).hash == found.hash
        few = loaded("dataset=npz", f"dataset.path={tmp_path / 'own.npz'}", "dataset.limit=30")
        assert few.rows is not None
        assert few.x[:, 0, 0, 0].tolist() == few.rows.tolist()
        np.savez(tmp_path / "far.npz", **{**lists, "train_0": [3, N]})
        with pytest.raises(ConfigError, match="names sample 54, which the data set, of 54, does not have"):
            make_partition(FileSplit(path=str(tmp_path / "far.npz")), data, Protocol(), 0)


def test_a_test_split_that_is_dealt_to_clients_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said, dealt = "protocol.test.pool=true deals the test samples", ("partition=homo", "partition.num_clients=3")
    cases: list[tuple[str, dict[str, Any], tuple[str, ...], bool]] = [
        ("a fifth of ours", {"x": X, "y": Y}, dealt, False),
        ("x_test", {"x": X[:40], "y": Y[:40], "x_test": X[40:], "y_test": Y[40:]}, dealt, True),
        ("split", {"x": X, "y": Y, "split": np.where(np.arange(N) % 4, "train", "test")}, dealt, True),
        ("by client", {"x": X, "y": Y, "client": CLIENT, "split": given_parts()}, (), False),
        ("apart", {"x": X[:40], "y": Y[:40], "x_test": X[40:], "y_test": Y[40:]},
         (*dealt, "protocol.test.pool=false"), False),
    ]  # fmt: skip
    for name, given, overrides, told in cases:
        caplog.clear()
        np.savez(tmp_path / f"{name}.npz", **given)
        fedbench.run(*SHORT, "dataset=npz", f"dataset.path={tmp_path / name}.npz", *overrides)
        assert (said in caplog.text) == told, name


def test_test_samples_of_other_clients_are_refused(tmp_path: Path) -> None:
    apart: dict[str, Any] = {"x": X[:40], "y": Y[:40], "client": CLIENT[:40], "x_test": X[40:], "y_test": Y[40:]}
    np.savez(tmp_path / "a.npz", **apart, client_test=np.repeat("east", 14))
    chosen = (*SHORT, "dataset=npz", f"dataset.path={tmp_path / 'a.npz'}")
    with pytest.raises(FedbenchError, match="no client with training samples has a test sample of the data"):
        fedbench.run(*chosen)
    np.savez(tmp_path / "a.npz", **apart, client_test=np.repeat(["east", "north"], 7))
    fedbench.run(*chosen, "partition.num_clients=2", "partition.min_size=12")  # of whom none has a test sample


def test_clients_that_each_modality_repeats_have_no_names(tmp_path: Path) -> None:
    """Every file has a line for each of them, and Local's are compared."""
    chosen = ("model=mixed", "model.divide=each", "method=fedproto", "reference=local")
    run = fedbench.run(
        *SHORT, *chosen, "dataset.kind=image", data=(np.tile(X[:, None, None, :1], (1, 1, 16, 16)), Y, CLIENT)
    )
    kinds = len(resolve(compose(["model=mixed", "method=fedproto"])).model.networks)
    assert len(run.clients) == 3 * kinds
    assert len(read_csv(run.folder / "clients.csv")) == len(read_csv(run.folder / "partition.csv")) == 3 * kinds


def test_small_and_large_clients_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fedbench.run(*SHORT, *table(csv(tmp_path, part=given_parts()), split="part"))
    said = caplog.text
    assert "3 clients, 007 to south, of 3 to 31 samples" in said
    assert "1 of 3 clients are left out" in said
    assert "2 of 2 clients have fewer than 10 test samples" in said
    assert "acc_pooled" in said


def owners(clients: list[Any], **fields: Any) -> Partition:
    domain = np.array(clients)
    data = Dataset("toy", np.zeros((len(domain), 1, 2, 2), np.float32), domain % 2, len(domain), 2, (0.0,), (1.0,),
                   domain=domain)  # fmt: skip
    return make_partition(Natural(**fields), data, Protocol(), 0)


def test_clients_are_kept_by_size_and_number() -> None:
    clients = [0] * 3 + [1] * 9 + [2] * 10 + [3] * 11 + [4]
    assert [len(a) + len(b) for a, b in zip(*(owners(clients).train, owners(clients).test), strict=True)] == [
        *(3, 9, 10, 11, 1)
    ]
    large = owners(clients, min_size=10)
    assert [len(a) + len(b) for a, b in zip(large.train, large.test, strict=True)] == [10, 11]
    assert len(owners(clients, num_clients=3)) == 3
    with pytest.raises(ConfigError, match=r"has 2 clients .*min_size=10 .* 3 are needed; the data have 5, .* 11"):
        owners(clients, min_size=10, num_clients=3)


def test_copies_that_the_protocol_will_split_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded(data=(np.concatenate([X[:1], X[:-1]]), np.concatenate([Y[:1], Y[:-1]]), CLIENT))
    assert "1 of 54 samples are copies of others: models may be tested on their training samples" in caplog.text


def test_only_data_with_clients_have_natural_ones(tmp_path: Path) -> None:
    run = resolve(compose(["partition=natural"]))
    with pytest.raises(ConfigError, match="needs data that name the client"):
        make_partition(run.partition, run.dataset.load(), run.protocol.test, 0)
    np.savez(tmp_path / "a.npz", x=X, y=Y, client=CLIENT)
    chosen = ["dataset=npz", f"dataset.path={tmp_path / 'a.npz'}"]
    assert resolve(compose(chosen)).labels["partition"] == "natural"
    assert resolve(compose([*chosen, "partition=dir0.3"])).labels["partition"] == "dir0.3"
    sized = resolve(compose([*chosen, "partition.num_clients=2", "partition.min_size=9"])).partition
    assert sized == Natural(num_clients=2, min_size=9)
    with pytest.raises(FedbenchError, match="unknown key of partition 'natural' 'alpha'"):
        resolve(compose([*chosen, "partition.alpha=0.3"]))
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    assert resolve(compose(chosen)).labels["partition"] == "dir0.1"


# ---- what is estimated, and from what

WORDED = ((), (), (), (), ("a", "b", "c"))


def test_columns_are_estimated_from_training_rows_alone() -> None:
    from sklearn.impute import SimpleImputer

    raw = X.astype(np.float32).copy()
    raw[[0, 30, 40], 1] = np.nan
    words = np.where(np.arange(N) == N - 1, 2.0, np.arange(N) % 2).astype(np.float32)
    words[5] = np.nan
    x = np.concatenate([raw, words[:, None]], 1)
    data = Dataset(
        *("toy", x[:, None, None, :], np.zeros(N, dtype=np.int64), N, 2, (0.0,), (1.0,), 1.0),
        columns=WORDED,
    )
    train = np.arange(0, N - 1, 2)
    read = fitted(data, train).x[:, 0, 0]
    filled = SimpleImputer(strategy="median").fit(raw[train]).transform(raw.astype(np.float64))
    assert filled[30, 1] == np.nanmedian(raw[train, 1])
    np.testing.assert_array_equal(read[:, :4], StandardScaler().fit(filled[train]).transform(filled).astype(np.float32))
    np.testing.assert_allclose(read[train, :4].mean(0), 0, atol=1e-6)
    assert read.shape[1] == 4 + 1, "of the words, only the one that is trained on has a column"
    np.testing.assert_array_equal(read[:, 4], words == 0)
    wider = fitted(data, np.arange(N)).x[:, 0, 0, 4:]
    np.testing.assert_array_equal(wider, np.stack([words == 0, words == 1, words == 2, np.isnan(words)], 1))


def test_a_run_estimates_from_what_its_seen_clients_train_on(tmp_path: Path) -> None:
    """Neither from test samples nor from clients that no round meets."""
    path = csv(tmp_path)
    run = resolve(compose([*SHORT, *table(path), "protocol.unseen=1"]))
    setup = build(run)
    trained = torch.cat([setup.federation.sets["train"][client] for client in range(2)])
    x = setup.federation.x[:, 0, 0].numpy()
    np.testing.assert_allclose(x[trained].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(x[trained].std(0), 1, atol=1e-5)
    assert np.abs(x.mean(0)).max() > 1e-3


def test_new_rows_are_predicted_as_the_table_s_are(tmp_path: Path) -> None:
    """As a frame, with the words that the table has, and as an array of raw numbers."""
    ward = np.where(np.arange(N) % 3 == 0, "A", "B")
    run = fedbench.run(*SHORT, *table(csv(tmp_path, ward=ward)), save_models=True)
    data = run_data(run)
    for client in range(3):
        mine = run_partition(run).test[client]
        if not len(mine):
            continue
        raw = data.x[mine, 0, 0]
        rows = pd.DataFrame(
            {f"x{i}": raw[:, i] for i in range(4)} | {"ward": np.array(["A", "B"])[raw[:, 4].astype(int)]}
        )
        expected = run.predict(client).scores
        np.testing.assert_array_equal(run.predict(client, rows[["ward", "x3", "x0", "x1", "x2"]]).scores, expected)
        np.testing.assert_array_equal(run.predict(client, raw).scores, expected)
    with pytest.raises(ConfigError, match="x lacks the columns x0"):
        run.predict(1, rows.drop(columns="x0"))
    with pytest.raises(ConfigError, match="x has 4 columns, table-sites has 5"):
        run.predict(1, raw[:, :4])


def test_words_that_no_training_sample_has_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As of ZIP codes that pandas reads as numbers: they would count as no category without a word."""
    codes, parts = np.resize(["01067", "10115"], N), np.resize(["train", "train", "test"], N)
    run = fedbench.run(
        *SHORT, *table(path := csv(tmp_path, code=codes, part=parts, batch=parts), split="part"), save_models=True
    )
    (told,) = [each.getMessage() for each in caplog.records if "no training sample has" in each.getMessage()]
    assert told.startswith("table-sites, samples not for training: 18 of 18 rows have in column 'batch' a category")
    caplog.clear()
    rows = pd.read_csv(path, dtype={"code": str}).query("part == 'train'")
    found = run.predict("south", rows)
    assert not caplog.records
    numbers = rows.assign(code=rows["code"].astype(int))
    assert (run.predict("south", numbers).scores != found.scores).any()
    assert f"x: {(rows['code'] == '01067').sum()} of {len(rows)} rows have in column 'code' a category" in caplog.text
    assert "such as '1067', and count as without one; write categories as in training (pandas.read" in caplog.text
    assert "dtype={'code': str}" in caplog.text
    caplog.clear()
    run.predict("south", [[0, 0, 0, 0, 5, 0]])
    assert "x: 1 of 1 rows have in column 'code' a category that no training sample has, such as '5.0'" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        (X, Y[:-1], CLIENT),
        (X, X[:, 0], CLIENT),
        (frame(), "il", "site"),
        (frame(ill=None), "ill", "site"),
        (frame().drop(columns=["x0", "x1", "x2", "x3"]), "ill", "site"),
    ],
)
def test_messages_on_data_in_memory_name_no_file_of_the_cache(data: Any, tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match=r"data \(data-[0-9a-f]{12}\)") as caught:
        fedbench.run(*SHORT, data=data)
    assert str(tmp_path) not in str(caught.value)


def run_data(run: fedbench.Run) -> Dataset:
    return from_plain(run.config).dataset.load()


def run_partition(run: fedbench.Run) -> Partition:
    return Partition.load(run.folder / "partition.npz")


def test_pixels_of_clients_are_normalised_by_training_samples() -> None:
    x = RNG.integers(0, 256, (N, 1, 4, 4)).astype(np.uint8)
    data = Dataset("toy", x, np.zeros(N, dtype=np.int64), N, 2, (0.5,), (1.0,), estimates=True)
    train = np.arange(10)
    read = fitted(data, train)
    assert read.mean == pytest.approx([x[train].mean() / 255])
    assert read.std == pytest.approx([x[train].std() / 255])
    assert fitted(dataclasses.replace(data, estimates=False), train).mean == (0.5,)


def test_pixels_of_a_split_are_estimated_from_training_samples_too(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (N, 1, 4, 4)).astype(np.uint8)
    split = np.where(np.arange(N) % 3 == 0, "val", "train")
    np.savez(tmp_path / "own.npz", x=x, y=Y, client=CLIENT, split=split)
    run = resolve(
        compose([*SHORT, "dataset=npz", f"dataset.path={tmp_path / 'own.npz'}", "protocol.test.val_fraction=0.2"])
    )
    read, partition = split_data(run)
    seen = run.dataset.load().x[np.concatenate(partition.train)]
    assert read.mean == pytest.approx([seen.mean() / 255])


def test_a_category_of_numbers_is_the_same_with_gaps_and_in_new_rows(tmp_path: Path) -> None:
    """Gaps make real numbers of whole ones; a word that the table lacks is none of its categories, nor missing."""
    path = csv(tmp_path, code=np.tile([1, 2, np.nan], N)[:N])
    data = resolve(compose([*SHORT, *table(path), "dataset.categories=[code]"])).dataset.load()
    assert data.columns[data.inputs.index("code")] == ("1", "2")
    encode = fitted(data, np.arange(N)).encode
    assert encode is not None
    rows = frame(code=np.tile([1, 2, 9], N)[:N])[:3]
    assert encode(rows)[:, -3:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert encode(rows.assign(code=[1.0, np.nan, 2.0]))[:, -3:].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_validation_samples_without_clients_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=X, y=Y, split=np.where(np.arange(N) % 3 == 0, "val", "train"))
    with pytest.raises(FedbenchError, match="split has val, which needs samples that name their clients"):
        Npz(path=str(tmp_path / "own.npz")).load()


# ---- what is no number


@pytest.mark.slow
def test_images_bring_a_convolution_if_they_are_large_enough() -> None:
    y = np.arange(60) % 2
    for size, label in ((15, "mlp200x200"), (16, "lenet5")):
        x = np.random.default_rng(0).integers(0, 255, (60, size, size, 3), np.uint8)
        run = fedbench.run(*SHORT, "partition=homo", data=(x, y))
        assert run.row["model"] == label
    named = fedbench.run(*SHORT, "partition=homo", "model=lenet5", data=(x, y))
    assert named.row["key"] == run.row["key"]


def test_tokens_bring_an_embedding_and_series_a_convolution(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    y = np.arange(60) % 2
    tokens = RNG.integers(1, 5000, (60, 12))
    tokens[:, 0] = 4999
    tokens[:, 8:] = 0
    series = RNG.normal(size=(60, 3, 16)) + y[:, None, None]
    for x, kind, label in ((tokens, "token numbers", "embedding5000x64"), (series, "series of 3 channels", "cnn1d")):
        caplog.clear()
        run = fedbench.run(*SHORT, "partition=homo", "partition.num_clients=2", data=(x, y))
        assert run.row["model"] == label
        assert kind in caplog.text
    for overrides, label in (
        (["dataset.kind=table"], "mlp200x200"),
        (["model=mlp", "dataset.kind=image"], "mlp200x200"),
    ):
        assert resolve(compose([*overrides, *given((tokens, y))])).model.label == label
    with pytest.raises(ConfigError, match="holds token ids, which model=mlp200x200 would read as numbers"):
        fedbench.run(*SHORT, "model=mlp", "partition=homo", data=(tokens, y))
    with pytest.raises(ConfigError, match=r"reads token ids below 100, .* has some up to 4999; take model.voc"):
        fedbench.run(*SHORT, "model=embedding", "model.vocabulary=100", "partition=homo", data=(tokens, y))
    with pytest.raises(FedbenchError, match="token numbers must be whole, from 0"):
        fedbench.run(*SHORT, "dataset.kind=tokens", data=(tokens - 1.5, y))


def given(data: Any) -> list[str]:
    from fedbench.api import _data

    return _data(data)


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (np.full((20, 8), 300), "tokens"),
        (np.full((20, 7), 300), "table"),  # too few for a text
        (np.full((20, 8), 255), "table"),  # may be pixels
        (np.full((20, 8), 300).astype(np.float32), "table"),
        (np.full((20, 8), 300) - 301, "table"),
        (np.tile([1, 2, 3, 90, 90, 90, 90, 300_000], (20, 1)), "table"),  # columns of different scales
        (np.zeros((20, 8), np.uint8), "image"),
        (np.zeros((20, 8, 8)), "image"),
        (np.zeros((20, 8, 9)), "series"),
        (np.zeros((20, 8, 9), np.uint8), "image"),
        (np.zeros((20, 3, 8, 9)), "image"),
    ],
)
def test_what_arrays_are_taken_for(x: np.ndarray, kind: str) -> None:
    assert own._kind_of(x) == kind


# ---- bad input

BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no target": ({}, {"target": "null"}, r"dataset.target: name the column of the label; .* has x0, x1"),
    "no such column": ({}, {"client": "cite"}, "unknown column of .*sites.csv 'cite'; nearest: site"),
    "no such split": ({}, {"split": "folds"}, "unknown column of .* 'folds'"),
    "the label as client": ({}, {"client": "ill"}, "target, client, split, drop: 'ill' is in two of them; leave"),
    "the label dropped": ({}, {"drop": "[ill]"}, "target, client, split, drop: 'ill' is in two of them; leave"),
    "a label is missing": ({"ill": [None, *Y[1:]]}, {}, "1 of 54 rows, the first at 0, have no label in 'ill'"),
    "a client is missing": ({"site": [*CLIENT[:-1], None]}, {}, "1 of 54 .* the first at 53, name no client"),
    "one client": ({"site": "A"}, {}, "all samples are of client A, a federation needs two"),
    "one class": ({"ill": "no"}, {}, "all labels are no"),
    "a gap in words": (
        {"x0": ["?", *X[1:, 0]]},
        {},
        r"'x0' holds numbers, and '\?'; leave missing values empty",
    ),
    "infinite": ({"x0": [np.inf, *X[1:, 0]]}, {}, "column 'x0' holds inf at 0"),
    "no number": ({"x0": [-1.797e308, *X[1:, 0]]}, {}, "column 'x0' holds -1.797e.308 at 0; leave missing values"),
    "dates": (
        {"x0": pd.date_range("2020-01-01", periods=N).strftime("%d.%m.%Y")},
        {},
        r"'x0' holds dates, such as '01.01.2020'; .* or dataset.categories=\[x0\]",
    ),
    "decimal commas": ({"x0": [f"{i},5" for i in range(N)]}, {}, "'x0' holds numbers with commas, such as '0,5'"),
    "another part": ({"part": "dev"}, {"split": "part"}, "split is 'dev' at 0; write train, val or test"),
}


@pytest.mark.parametrize("case", sampled(BAD, every=3))
def test_bad_tables_are_refused_in_a_line(case: str, tmp_path: Path) -> None:
    changed, roles, said = BAD[case]
    with pytest.raises(FedbenchError, match=said) as caught:
        fedbench.run(*SHORT, *table(csv(tmp_path, **changed), **roles))
    assert "\n" not in str(caught.value)


def test_free_text_dates_and_numbers_of_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long = pd.concat([frame()] * 3, ignore_index=True)
    long["note"] = [f"word{i}" for i in range(len(long))]
    long["row"] = range(100, 100 + len(long))
    long.to_csv(tmp_path / "long.csv", index=False)
    path = str(tmp_path / "long.csv")
    with pytest.raises(FedbenchError, match=r"'note' holds 162 different words, .*'word0'.*dataset.drop=\[note\]"):
        OwnTable(path=path, target="ill").load()
    OwnTable(path=path, target="ill", drop=("note", "site")).load()
    assert "column 'row' numbers the rows; if it is no input: dataset.drop=[row]" in caplog.text
    assert OwnTable(path=path, target="ill", drop=("note", "row")).load().columns == (
        (),
        (),
        (),
        (),
        ("007", "north", "south"),
    )
    assert OwnTable(path=path, target="ill", drop=("row",), categories=("note",)).load().columns[-1][:2] == (
        "word0",
        "word1",
    )
    long.assign(row=pd.Timestamp("2020-01-01")).to_parquet(tmp_path / "long.parquet")
    with pytest.raises(FedbenchError, match="column 'row' holds dates"):
        OwnTable(path=str(tmp_path / "long.parquet"), target="ill", drop=("note",)).load()


@pytest.mark.parametrize("form", ["frame", "dataset", "parquet"])
def test_the_types_of_columns_are_kept(form: str, tmp_path: Path) -> None:
    """Words that look like numbers or like nothing stay words; whole numbers with gaps are no other names."""

    def read(**more: Any) -> Dataset:
        table = frame(**more).drop(columns=["x3"])
        if form == "parquet":
            table.to_parquet(tmp_path / "typed.parquet")
            return OwnTable(path=str(tmp_path / "typed.parquet"), target="ill", client="site").load()
        data = Hugging(**table.to_dict("list")) if form == "dataset" else table
        return loaded(data=(data, "ill", "site"))

    codes = np.where(np.arange(N) % 2, "007", "7")
    assert read(site=codes).names == ("007", "7")
    assert read(ill=codes).classes == 2
    assert read(code=codes).columns[-1] == ("007", "7")
    assert read(site=np.where(codes == "7", "NA", "a"), ill=np.where(codes == "7", "NA", "a")).classes == 2
    whole = np.arange(N) % 3
    assert read(site=whole.astype(float)).names == read(site=pd.array(whole, dtype="Int64")).names == ("0", "1", "2")
    assert read(mark=whole == 1, price=[Decimal(i) for i in whole.tolist()]).columns[-2:] == ((), ())
    with pytest.raises(FedbenchError, match="the first at 3, name no client; give each one"):
        read(site=np.where(np.arange(N) == 3, np.nan, whole))
    for times in (pd.to_datetime("2020-01-02") + pd.to_timedelta(whole, "D"), pd.to_timedelta(whole, "D")):
        with pytest.raises(FedbenchError, match=r"'when' holds (dates|times), such as '.*'; write numbers such as 7.5"):
            read(when=times)
    empty = None if form == "parquet" else ""
    gaps = np.where(np.arange(N) == 3, empty, np.array([f"00{i}.5" for i in whole], dtype=object))
    assert read(price=gaps).columns[-1] == (), "an empty word is a missing number"
    with pytest.raises(FedbenchError, match="the first at 3, have no label in 'ill'"):
        read(ill=gaps)


def test_numbers_that_a_file_keeps_as_words(tmp_path: Path) -> None:
    texts = pd.DataFrame(
        {"a": ["1.5", None, *map(str, range(52))], "long": [f"{10**25 + i}" for i in range(N)], "y": Y}
    )
    texts["decimal"] = [Decimal(i) / 4 for i in range(N)]
    texts["kind"] = pd.Categorical(np.where(np.arange(N) % 2, "1", "2"))
    texts.to_parquet(tmp_path / "texts.parquet")
    read = OwnTable(path=str(tmp_path / "texts.parquet"), target="y").load()
    assert read.columns == ((), (), (), ("1", "2"))
    assert read.rows is not None
    rows = np.argsort(read.rows)
    np.testing.assert_array_equal(read.x[rows, 0, 0, 0], [1.5, np.nan, *range(52)])
    np.testing.assert_array_equal(read.x[rows, 0, 0, 2], np.arange(N) / 4)


def test_numbers_too_close_for_float32_stay_apart(tmp_path: Path) -> None:
    """Such as the seconds since 1970; others are kept as float32, with gaps or one number in a column too."""
    seconds = 1.7e9 + np.arange(N)
    for name, times, kind in (("since 1970", seconds, np.float64), ("from 0", seconds - 1.7e9, np.float32)):
        path = csv(tmp_path, time=times, gap=np.nan, one=0.1)
        read = OwnTable(path=path, target="ill", client="site").load()
        assert read.x.dtype == kind, name
        scaled = fitted(read, np.arange(N)).x[:, 0, 0, 4]
        expected = (np.arange(N) - np.arange(N).mean()) / np.arange(N).std()
        np.testing.assert_allclose(scaled, expected, atol=1e-6, err_msg=name)
        assert scaled.dtype == np.float32
    apart = {"x": seconds[:40, None], "y": Y[:40], "x_test": seconds[[4, 9], None] + 128, "y_test": Y[:2]}
    np.savez(tmp_path / "apart.npz", **apart)
    few = Npz(path=str(tmp_path / "apart.npz")).load()
    assert few.x[-2:, 0, 0, 0].tolist() == [1.7e9 + 132, 1.7e9 + 137], "test samples, few, are as exact"
    assert Npz(path=str(tmp_path / "apart.npz"), mean=(1.7e9,), std=(10.0,)).load().x.dtype == np.float32
    run = fedbench.run(*SHORT, *table(path := csv(tmp_path, time=seconds)), save_models=True)
    rows = pd.read_csv(path).iloc[run_partition(run).test[0]].drop(columns=["site", "ill"])
    np.testing.assert_allclose(run.predict(0, rows).scores, run.predict(0).scores, atol=1e-6)


@pytest.mark.parametrize("text", ["k|p|c,z,ill\n1,2,a\n2,3,b\n", "\nx,z,ill\n1,2,a\n2,3,b\n"])
def test_pipes_in_names_and_an_empty_first_line_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "sites.csv").write_text(text)
    assert OwnTable(path=str(tmp_path / "sites.csv"), target="ill").load().x.shape == (2, 1, 1, 2)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("x,ill,ill\n1,a,a\n2,b,b\n", "several columns 'ill'"),  # of which one would be an input
        ("x,z,ill\n1,2,a,\n2,3,b,\n", "4 fields below 3 names"),  # each would be read under its neighbour's name
    ],
)
def test_rows_that_are_not_under_their_names_are_refused(rows: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "sites.csv").write_text(rows)
    with pytest.raises(FedbenchError, match=rf"{said}\); .* whose first line names each column, once"):
        OwnTable(path=str(tmp_path / "sites.csv"), target="ill").load()


def test_codes_of_a_csv_are_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As they are in a data frame: the label 007 is not 7, and ZIP codes are no quantities."""
    codes = {"ill": np.resize(["7", "007", "10"], len(X)), "zip": np.resize(["01067", "10115"], len(X))}
    path = csv(tmp_path, **codes, self=np.arange(len(X)) % 3)
    found = OwnTable(path=path, target="ill", client="site").load()
    assert found.classes == 3
    assert found.columns[found.inputs.index("zip")] == ("01067", "10115")
    assert found.columns[0] == ()
    assert f"{path}: classes 0 to 2 are the labels 007, 10, 7" in [each.getMessage() for each in caplog.records]
    plain = OwnTable(path=csv(tmp_path, ill=np.resize([7, 8], len(X))), target="ill", client="site").load()
    assert plain.classes == 2


def test_semicolons_and_files_that_are_no_tables(tmp_path: Path) -> None:
    for comma in ";|\t":
        frame().to_csv(tmp_path / "semi.csv", index=False, sep=comma)
        found = OwnTable(path=str(tmp_path / "semi.csv"), target="ill", client="site").load()
        assert found.names == ("007", "north", "south")
    frame().to_json(tmp_path / "SITES.JSON", orient="records")
    assert OwnTable(path=str(tmp_path / "SITES.JSON"), target="ill", client="site").load().names == found.names
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("bad.parquet", "bad.csv"):
        with pytest.raises(FedbenchError, match=rf"{name} is not a table .*; write a .parquet, or a .csv in UTF-8"):
            OwnTable(path=str(tmp_path / name), target="ill").load()
    with pytest.raises(FedbenchError, match="is a folder: join its files to one table, with a column of clients"):
        OwnTable(path=str(tmp_path), target="ill").load()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((X,), "no labels|not each is"),
        ((X, Y, CLIENT, Y, Y), "data has 5 parts"),
        ((frame(), Y, "site"), "its y must be the name of a column"),
        ({"train": 1, "test": 2}, "dictionary of train, test: give one of them"),
        ("hosp.csv", "of the type str"),
        (([[1, 2], [1]], [0, 1]), "x has parts of different shapes"),
        ((np.array([["a", None]], dtype=object), [1]), "x holds 'a'"),
        ((np.array([[0.5, None]], dtype=object), [1]), "x holds None"),
        ((X, [None, *Y[1:]]), "1 of 54 labels, the first at 0, are missing"),
        ((X.astype("datetime64[D]"), Y), r"x holds .*1970.*; give numbers"),
        ((np.ma.masked_less(X, 0), Y), "x has masked entries; fill them"),
        ((frame().set_axis([*frame().columns[:-1], frame().columns[0]], axis=1), "ill"), "several columns '"),
        ((pd.concat({"a": frame()}, axis=1), "ill"), "several levels of columns; join their names"),
        ((Hugging(a=[[1]], b=[[2]], c=[1]), "c"), "needs one for the samples"),
    ],
)
def test_data_of_no_form_are_refused(data: Any, said: str) -> None:
    with pytest.raises(FedbenchError, match=said):
        fedbench.run(*SHORT, data=data)


def test_numbers_that_are_objects_are_numbers() -> None:
    mixed = pd.DataFrame({"a": X[:, 0], "b": Y == "yes"}).to_numpy()
    assert mixed.dtype == object
    read = loaded(data=(mixed, Y, CLIENT))
    np.testing.assert_array_equal(read.x[:, 0, 0], np.stack([X[:, 0], Y == "yes"], axis=1).astype(np.float32))


def test_what_a_torch_dataset_has_more_is_refused() -> None:
    class More(Pairs):
        def __getitem__(self, i: int) -> Any:
            return (*super().__getitem__(i), "train", i)

    with pytest.raises(FedbenchError, match=r"data has 54 items, and not each is \(x, y\), with client and split"):
        loaded(data=More())


@pytest.mark.parametrize("mode", ["P", "LA", "CMYK", "1", "RGBA"])
def test_images_of_pillow_are_read_with_their_colours(mode: str) -> None:
    """A number of a palette is no shade; in a folder of images too."""
    images = [Image.new("RGB", (5, 5), [(255, 255, 255), (0, 0, 0)][i % 2]).convert(mode) for i in range(N)]
    x = loaded(data=(images, Y)).x
    assert x.shape[1] == {"P": 3, "LA": 4, "CMYK": 3, "1": 1, "RGBA": 4}[mode]
    shades = x[:, :3] / (1 if mode == "1" else 255)
    rows = loaded(data=(images, Y)).rows
    assert rows is not None
    np.testing.assert_array_equal(shades[:, 0, 0, 0], 1 - rows % 2)


def test_images_of_two_channels_are_not_coloured() -> None:
    data = (np.random.default_rng(0).normal(size=(60, 2, 5, 5)).astype(np.float32), np.arange(60) % 10)
    given = (*SHORT, "partition=anda", "partition.num_clients=6")
    fedbench.run(*given, "partition.level=4", data=data)
    with pytest.raises(FedbenchError, match=r"anda_px8 colours images of one channel or three, .* has 2; choose"):
        fedbench.run(*given, "partition.level=8", data=data)


def test_dates_name_clients_and_bfloat16_are_numbers() -> None:
    """NumPy writes the former as it does no number, and has no type for the latter."""
    days = np.array(["2020-01-02", "2020-01-01"], dtype="datetime64[D]")[np.arange(len(X)) % 2]
    rough = torch.from_numpy(X).bfloat16()
    read, expected = (loaded(data=each) for each in ((rough, Y, days), (rough.float().numpy(), Y, days.astype(str))))
    assert read.names == ("2020-01-01", "2020-01-02")
    assert read.content == expected.content
    pairs = torch.utils.data.TensorDataset(rough, torch.arange(len(X)) % 3, torch.arange(len(X)) % 2)
    assert loaded(data=pairs).x.tolist() == read.x.tolist()
    late = days.copy()
    late[3] = np.datetime64("NaT")
    with pytest.raises(FedbenchError, match=r"1 of .* samples, the first at 3, name no client"):
        loaded(data=(X, Y, late))


def test_keys_of_earlier_data_are_what_they_were(tmp_path: Path) -> None:
    """A field that came since counts only where it is set."""
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    chosen = [*SHORT, "dataset=npz", f"dataset.path={tmp_path / 'a.npz'}"]
    assert resolve(compose(chosen)).key == "256b6fe130f791b8"
    assert resolve(compose([*chosen, "dataset.kind=image"])).key != "256b6fe130f791b8"
    flat = Npz(path=str(tmp_path / "a.npz"), kind="image").load()
    assert (flat.columns, flat.names, flat.tokens, flat.part) == ((), (), 0, None)
    assert flat.content == "5dd3ea92b8a0"


def test_a_relative_path_is_looked_for_in_the_data_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a committed config, such as a board's, names a file without a machine's folders."""
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedbenchError, match=r"nothing at sites\.csv or .*data/sites\.csv"):
        OwnTable(path="sites.csv", target="ill").load()
    (tmp_path / "data").mkdir()
    csv(tmp_path / "data")
    found = OwnTable(path="sites.csv", target="ill")
    assert len(found.load()) == N
    assert found.state().where == str(tmp_path / "data" / "sites.csv")
    csv(tmp_path, more=np.ones(N))
    assert found.load().inputs[-1] == "more"  # the working folder's comes first
