"""A message names the key or the file, says what was found there, and what to do."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedbench.cli.program import main
from fedbench.config import compose
from fedbench.core.locks import FolderLock
from fedbench.data.datasets.own import ImageFolder, Npz
from fedbench.data.files import unpack
from fedbench.data.formats import read_idx, read_images, read_pickle
from fedbench.data.partition import make_partition
from fedbench.models.vision import ResNet18, TorchvisionModel, read_weights
from fedbench.runs.config import resolve
from fedbench.runs.progress import amount, result_line
from tests.helpers.examples import FORTY, line_of
from tests.helpers.said import DO
from tests.helpers.tiers import sampled

pytestmark = pytest.mark.usefixtures("elsewhere")


def line(make: Callable[[], object]) -> str:
    """What a person reads where `make` refuses."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of many classes; the message is what counts
        make()
    return line_of(caught.value)


def npz(path: Path, **arrays: Any) -> Callable[[], object]:
    np.savez(path, **arrays)
    return Npz(path=str(path)).load


def weights(path: Path, content: object, **fields: Any) -> Callable[[], object]:
    torch.save(content, path)
    return ResNet18(weights=str(path), **fields).begin


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def state(**changed: Any) -> dict[str, torch.Tensor]:
    """A state dict of torchvision's ResNet-18, with other leaves; None: without."""
    whole = {**ResNet18(pretrained=False)._network(1000).state_dict(), **changed}
    return {name: leaf for name, leaf in whole.items() if leaf is not None}


def split(path: Path, **arrays: Any) -> Callable[[], object]:
    np.savez(path, **arrays)
    spec = resolve(compose.compose(["partition=file", f"partition.path={path}"]))
    return lambda: make_partition(spec.partition, FORTY, spec.protocol.test, 0)


def locked_behind(path: Path) -> Callable[[], object]:
    path.symlink_to(path.parent / "nowhere")
    return lambda: FolderLock(path / "run").acquire()


def latin(folder: Path) -> Callable[[], object]:
    (folder / "method").mkdir(parents=True)
    (folder / "method" / "mine.yaml").write_bytes("# für mich\nname: fedavg\n".encode("latin-1"))
    return lambda: compose.compose(["method=mine", f"hydra.searchpath=[file://{folder}]"])


X, Y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 2
FILES: dict[str, tuple[Callable[[Path], Callable[[], object]], str]] = {  # what makes and reads it; what is found there
    "truncated batch": (lambda p: lambda: read_pickle(written(p, b"")), "EOFError|ended|Ran out"),
    "idx of other magic": (lambda p: lambda: read_idx(written(p, b"\x00\x00\x0d\x01\x00\x00\x00\x01")), "magic|13|0d"),
    "no image": (lambda p: lambda: read_images([written(p, b"GIF")], 4), "cannot identify"),
    "no archive": (lambda p: lambda: unpack(written(p, b"no"), p.parent / "out"), "not a gzip file"),
    "arrays besides x and y": (lambda p: npz(p, x=X, y=Y, hospital=Y), "hospital"),
    "clients without a name": (lambda p: npz(p, x=X, y=Y, client=["A", ""] * 6), "6 of 12 training samples, .* at 1"),
    "clients with gaps": (lambda p: npz(p, x=X, y=Y, client=np.where(Y, np.nan, 1.0)), "6 of 12 .* at 1, name no cl"),
    "one client": (lambda p: npz(p, x=X, y=Y, client=["A"] * 12), "all samples are of client A"),
    "clients of a shape": (lambda p: npz(p, x=X, y=Y, client=Y[1:]), r"client must be a list .* the 12 .*\(11,\)"),
    "another part": (lambda p: npz(p, x=X, y=Y, split=["train", "dev"] * 6), "split is 'dev' at 1"),
    "no training part": (lambda p: npz(p, x=X, y=Y, split=["val", "test"] * 6), "no sample is for training"),
    "one class": (lambda p: npz(p, x=X, y=Y * 0), "all labels are 0"),
    "labels of no class": (lambda p: npz(p, x=X, y=Y + 0.5), r"0\.5"),
    "objects": (lambda p: npz(p, x=X, y=Y.astype(object)), "not a .npz of arrays"),
    "weights that are not finite": (
        lambda p: weights(p, state(**{"conv1.weight": torch.full((64, 3, 7, 7), torch.nan)})),
        "'conv1.weight' holds values that are not finite",
    ),
    "weights that lack a leaf": (lambda p: weights(p, state(**{"bn1.weight": None})), "has no 'bn1.weight'"),
    "weights with a leaf more": (lambda p: weights(p, state(more=torch.zeros(1))), "has 'more'"),
    "weights of another shape": (
        lambda p: weights(p, state(**{"fc.bias": torch.zeros(2)})),
        r"'fc.bias' of shape \[2\] and not \[1000\]",
    ),
    "weights of no network": (lambda p: weights(p, {"epoch": 3}), "no state dict"),
    "a sample of uint64": (
        lambda p: split(p, train_0=np.array([2**63 + 5], np.uint64), train_1=np.arange(9)),
        "unsigned 9223372036854775813",
    ),
    "runs_dir that leads nowhere": (locked_behind, "nowhere, where there is nothing"),
}  # fmt: skip


@pytest.mark.parametrize("case", sampled(FILES, every=4))
def test_of_files(case: str, tmp_path: Path) -> None:
    make, found = FILES[case]
    path = tmp_path / "my file.npz"
    said = line(make(path))
    assert "partition file-" in said if case == "a sample of uint64" else str(path) in said
    assert re.search(found, said), said
    assert " ()" not in said
    assert DO.search(said.replace(str(path), "")), said


def test_a_yaml_of_another_encoding_is_named(tmp_path: Path) -> None:
    said = line(latin(tmp_path / "conf"))
    assert str(tmp_path / "conf" / "method" / "mine.yaml") in said
    assert "not UTF-8" in said
    assert "save it as UTF-8" in said


@pytest.mark.parametrize("prefix", sampled(["", "module."], every=2))
@pytest.mark.parametrize("inside", sampled([False, True], every=2))
def test_weights_of_a_checkpoint_or_of_data_parallel_are_those_inside(
    prefix: str, inside: bool, tmp_path: Path
) -> None:
    plain = state()
    renamed = {f"{prefix}{name}": leaf for name, leaf in plain.items()}
    torch.save({"state_dict": renamed, "epoch": 3} if inside else renamed, tmp_path / "w.pth")
    read = read_weights(tmp_path / "w.pth")
    assert read.keys() == plain.keys()
    assert all(torch.equal(read[name], leaf) for name, leaf in plain.items())
    begun = ResNet18(weights=str(tmp_path / "w.pth")).begin()
    assert torch.equal(begun["stem.conv.weight"], plain["conv1.weight"])


@pytest.mark.parametrize(
    ("arguments", "parts"),
    sampled(
        [
            (["method=local", "++method.mu=1"], ["'mu'", "there is none", "leave it out"]),
            (
                ["method=fedadam", "method.first=0", "method.tau=1e-46"],
                ["method.tau=1e-46", "is 0", "at least 1.4e-45"],
            ),
            (
                ["dataset=csv"],
                ["'csv'", "dataset=table for .csv and .parquet, npz for arrays, images for folders of images"],
            ),
            (["dataset=digits", "dataset.task=regression"], ["nearest: dataset.task with dataset=npz|table"]),
            (["dry_run=true"], ["'dry_run'", "none is near", "--cfg job"]),
        ],
        every=4,
    ),
)
def test_what_people_tried(arguments: list[str], parts: list[str]) -> None:
    said = line(lambda: resolve(compose.compose(arguments)))
    assert [part for part in parts if part not in said] == []


def test_a_global_test_names_the_key_that_allows_it() -> None:
    run = resolve(compose.compose(["protocol=quick", "protocol.test.sets=global", "partition=homo"]))
    said = line(lambda: make_partition(run.partition, FORTY, run.protocol.test, 0))
    assert "protocol.test.pool=true" in said
    assert "or protocol.test.pool=false" in said


def test_a_network_without_a_name() -> None:
    said = line(lambda: TorchvisionModel().build((3, 32, 32), 2))
    assert "give model.architecture=NAME" in said
    assert "'resnet81'" not in said
    assert "resnet18" in line(lambda: TorchvisionModel(architecture="resnet81").build((3, 32, 32), 2))


@pytest.mark.parametrize(
    ("spelled", "alpha"),
    sampled([("dir.1", 0.1), ("dir1E-1", 0.1), ("dir1e+0", 1.0), ("dir0.30", 0.3), ("dir2.", 2.0)], every=5),
)
def test_a_family_s_number_is_spelled_as_any_number(spelled: str, alpha: float) -> None:
    run = resolve(compose.compose([f"partition={spelled}"]))
    assert run.partition.alpha == alpha  # type: ignore[attr-defined]
    assert run.labels["partition"] == f"dir{alpha:g}"


# ---- what was understood


def said_of(data: Npz | ImageFolder, caplog: pytest.LogCaptureFixture) -> list[str]:
    data.load()
    return [record.getMessage() for record in caplog.records]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
    """The lines that reading a file of these arrays says."""
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))

    def read(**arrays: Any) -> list[str]:
        np.savez(tmp_path / "mine.npz", **arrays)
        return said_of(Npz(path=str(tmp_path / "mine.npz")), caplog)

    return read


def test_whole_floats_are_told_with_the_number_of_classes(told: Callable[..., list[str]]) -> None:
    said, classes = told(x=X, y=np.tile([20.0, 30.0, 41.0], 4))
    assert "mine.npz" in said
    assert "taken for 3 classes" in said
    assert classes.endswith("classes 0 to 2 are the labels 20, 30, 41")


def test_numbers_of_tokens_are_told(told: Callable[..., list[str]]) -> None:
    (said,) = told(x=np.arange(24).reshape(12, 2) * 200, y=Y)
    assert "integers from 0 to 4600" in said
    assert "tokens" in said


@pytest.mark.parametrize("x", [np.arange(24).reshape(12, 2) * 11, (np.arange(24).reshape(12, 2) * 11).astype(np.uint8)])
def test_integers_that_may_be_pixels_are_not(x: np.ndarray, told: Callable[..., list[str]]) -> None:
    assert told(x=x, y=Y) == []


def test_a_series_is_told(told: Callable[..., list[str]]) -> None:
    (said,) = told(x=np.arange(12 * 6 * 8, dtype=np.float32).reshape(12, 6, 8), y=Y)
    assert "[6, 8] were taken for series of 6 channels and 8 steps; dataset.kind=image" in said


def test_a_series_as_told_has_its_channels(tmp_path: Path) -> None:
    x = np.arange(12 * 6 * 8, dtype=np.float32).reshape(12, 6, 1, 8)
    np.savez(tmp_path / "a.npz", x=x, y=Y)
    data = Npz(path=str(tmp_path / "a.npz")).load()
    assert data.shape == (6, 1, 8)
    np.testing.assert_allclose(data.mean, data.x[: data.num_train].mean((0, 2, 3)), rtol=1e-6)


def test_what_an_image_loses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "pictures"
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (32, 40), (i, 0, 0)).save(folder / label / f"{i}.png")
    Image.new("RGB", (400, 10), (50, 0, 0)).save(folder / "a" / "long.png")
    Image.new("RGBA", (32, 32), (9, 9, 9, 255)).save(folder / "a" / "opaque.png")
    Image.new("RGBA", (32, 32), (9, 9, 9, 0)).save(folder / "b" / "clear.png")
    for name, most in (("dark", 4095), ("deep", 4096)):  # of 16 bits
        Image.fromarray(np.full((32, 32), most, np.uint16)).save(folder / "b" / f"{name}.png")
    squeezed, transparent, dark, classes = said_of(ImageFolder(path=str(folder)), caplog)
    assert classes.endswith("classes 0 to 1 are the labels a, b")
    for said, file in ((squeezed, "a/long.png"), (transparent, "b/clear.png")):
        assert f"pictures: 1 of 15 images, the first {file}, are " in said
    assert "squeezed" in squeezed
    assert "transparent" in transparent
    assert "1 of 15 images, the first b/dark.png, have 16 bits, of which the upper eight are read, and no grey" in dark


# ---- what is printed


@pytest.mark.parametrize(("count", "text"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds")])
def test_one_of_a_thing_is_no_plural(count: int, text: str) -> None:
    assert amount(count, "round") == text


@pytest.mark.slow
def test_a_quiet_run_prints_its_result_and_its_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = ["method=fedavg", "dataset=digits", "dataset.limit=200", "protocol.rounds=1", "progress=none", "hardware=cpu"]
    assert main([*run, f"runs_dir={tmp_path / 'runs'}"]) == 0
    result, folder = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"fedavg, seed 0: Acc % [\d.]+, pooled % [\d.]+, IPR % [\d.]+, RSD pp [\d.]+", result)
    assert Path(folder.removeprefix("folder: ")).is_relative_to(tmp_path / "runs")
    assert (Path(folder.removeprefix("folder: ")) / "result.json").is_file()


def test_a_line_leaves_out_what_is_not_known() -> None:
    row = {"method": "local", "seed": 3, "acc": 50.0, "acc_pooled": 49.126, "ipr": None, "rsd": float("nan")}
    assert result_line(row) == "local, seed 3: Acc % 50.00, pooled % 49.13"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_s_store_is_beside_the_runs(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = ["method=local", "dataset=digits", "dataset.limit=200", "protocol.rounds=1", "progress=none", "hardware=cpu"]
    assert main([*run, f"runs_dir={tmp_path / 'runs'}", "mlflow.enabled=true"]) == 0
    with sqlite3.connect(tmp_path / "runs" / "mlflow.db") as store:
        assert store.execute("select count(*) from metrics where key = 'final_acc'").fetchone() == (1,)
    assert [*elsewhere.iterdir()] == []
