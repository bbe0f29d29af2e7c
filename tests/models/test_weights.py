"""Weights that networks begin with: which leaves, missing and damaged files, and what a table says of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedbench.config import compose
from fedbench.core import rng
from fedbench.core.errors import DataCorrupt, DataMissing
from fedbench.models import vision as weight_files
from fedbench.runs.config import RunConfig, resolve
from tests.helpers.tiers import sampled
from tests.methods.toys import gap
from tests.models.scratch import build


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as torch.hub's."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    return tmp_path / "hub" / "checkpoints"


def imagenet(name: str) -> dict[str, Tensor]:
    """A state dict as torchvision publishes it, with other values."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = build(name)._network(1000)  # type: ignore[attr-defined]
        net.train()(torch.randn(4, 3, 32, 32))
    return net.state_dict()


@pytest.mark.parametrize(
    ("name", "stem"),
    sampled([("squeezenet", "features.0"), ("resnet18", "conv1"), ("mobilenet_v2", "features.0.0")], every=3),
)
def test_weights_begin_everything_but_the_head(name: str, stem: str, hub: Path) -> None:
    state = imagenet(name)
    hub.mkdir(parents=True)
    torch.save(state, hub / weight_files.hub_file(build(name).architecture).name)  # type: ignore[attr-defined]
    model = build(name, pretrained=True)
    assert model.label == name
    task = model.task((3, 32, 32), 6)
    first, second = (task.init(rng.torch_rng(seed, "init")) for seed in (0, 1))
    body = [n for n in first if not n.startswith("head.")]
    assert gap({n: first[n] for n in body}, {n: second[n] for n in body}) == 0
    assert (
        gap(
            {n: v for n, v in first.items() if n not in body},
            {n: v for n, v in second.items() if n not in body},
        )
        > 0
    )
    net = model._network(1000).eval()  # type: ignore[attr-defined]
    net.load_state_dict(state)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = {
            "resnet18": lambda: torch.nn.Sequential(*list(net.children())[:-1])(x).flatten(1),
            "mobilenet_v2": lambda: net.features(x).mean((2, 3)),
            "squeezenet": lambda: net.features(x).flatten(1),
        }[name]()
    torch.testing.assert_close(task.features(first, x), expected, atol=1e-5, rtol=1e-5)
    first[body[0]].add_(1)
    assert gap(second, task.init(rng.torch_rng(1, "init"))) == 0  # leaves are copies


@pytest.mark.slow
def test_missing_weights_name_the_way_out(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    task = build("resnet18", pretrained=True).task((3, 32, 32), 10)
    with pytest.raises(DataMissing, match=r"resnet18-f37072fd\.pth; set model\.download=true, model\.weights=FILE"):
        task.init(torch.Generator())
    task = build("resnet18", pretrained=True, download=True).task((3, 32, 32), 10)
    with pytest.raises(DataMissing, match="could not be downloaded: Network is unreachable"):
        task.init(torch.Generator())
    with pytest.raises(DataMissing, match=r"none\.pth"):
        _ = build("resnet18", pretrained=True, weights=str(hub / "none.pth")).label


@pytest.mark.parametrize("content", sampled(["garbage", "truncated", "other network", "no dict"], every=4))
def test_damaged_weights_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    if content == "garbage":
        path.write_bytes(b"not a checkpoint")
    else:
        torch.save(
            {"other network": imagenet("squeezenet"), "no dict": [1, 2]}.get(content, imagenet("resnet18")),
            path,
        )
    if content == "truncated":
        path.write_bytes(path.read_bytes()[:-1000])
    task = build("resnet18", pretrained=True, weights=str(path)).task((3, 32, 32), 10)
    with pytest.raises(DataCorrupt, match=r"weights"):
        task.init(torch.Generator())


def test_tables_tell_scratch_and_other_weights_from_imagenet_s(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    path.write_bytes(b"1")

    def run(*overrides: str) -> RunConfig:
        return resolve(compose.compose(["model=resnet18", *overrides]))

    usual, scratch = run(), run("model.pretrained=false")
    other, fetched = run(f"model.weights={path}"), run("model.download=true")
    labels = [each.labels["model"] for each in (usual, scratch, other, fetched)]
    assert labels == ["resnet18", "resnet18_scratch", "resnet18-6b86b273", "resnet18"]  # sha256 of "1"
    keys = [each.key for each in (usual, scratch, other, fetched)]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3


def test_what_is_lacking_and_where_it_is_looked_for(hub: Path, tmp_path: Path) -> None:
    hub.mkdir(parents=True)
    assert weight_files.hub_file("resnet18") == hub / "resnet18-f37072fd.pth"
    mine = tmp_path / "mine.pth"
    asked = [
        {"pretrained": p, "weights": w, "download": d} for p in (True, False) for w in (None, mine) for d in (0, 1)
    ]
    for there in ((), ("hub",), ("mine",)):
        for name, file in (("hub", hub / "resnet18-f37072fd.pth"), ("mine", mine)):
            file.write_bytes(b"1") if name in there else file.unlink(missing_ok=True)
        for each in asked:
            own, chosen = each["weights"] is not None, {**each, "download": bool(each["download"])}
            model = build("resnet18", **{**chosen, "weights": str(mine) if own else None})
            found = ("mine" if own else "hub") in there or not each["pretrained"] or (each["download"] and not own)
            end = "set model.download=true, model.weights=FILE or model.pretrained=false"
            said = f"the ImageNet weights of resnet18 are not at {hub / 'resnet18-f37072fd.pth'}; {end}"
            if own:  # which no download would be looked for beside
                said = f"model.weights={mine}: there is no such file"
            assert model.lacking() == ("" if found else said)
    assert build("resnet18", pretrained=False).begin() == {}


def test_a_file_with_torchvision_s_own_content_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hash is in the published name; also where the file is called otherwise."""
    path = tmp_path / "w.pth"
    path.write_bytes(b"1")
    assert build("resnet18", pretrained=True, weights=str(path)).label == "resnet18-6b86b273"
    assert build("resnet18", pretrained=False, weights=str(path)).label == "resnet18_scratch"
    monkeypatch.setattr(weight_files, "hub_file", lambda _: Path("resnet18-6b86b273.pth"))
    assert build("resnet18", pretrained=True, weights=str(path)).label == "resnet18"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build("resnet18", pretrained=True, weights="~/w.pth").label == "resnet18"
    with pytest.raises(DataMissing, match=r"^model\.weights=.*none\.pth: No such file or directory$"):
        weight_files.weights_hash(tmp_path / "none.pth")
    with pytest.raises(DataCorrupt, match=r"w\.pth holds no weights that torch can read; delete it"):
        weight_files.read_weights(path)


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    """As in a notebook; with the earlier label its results would be taken for those of the earlier weights."""
    path, found = tmp_path / "w.pth", []
    for value in (1.0, 2.0, 1.0):
        torch.save({"w": torch.tensor(value)}, path)
        os.utime(path, (1, 1))  # as rsync -t or tar set it
        assert weight_files.read_weights(path)["w"] == value
        assert weight_files.read_weights(path) is weight_files.read_weights(path)
        found.append(build("resnet18", pretrained=True, weights=str(path)).label)
    assert found[0] == found[2] != found[1]


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.folder,)


def test_a_file_of_weights_executes_nothing(tmp_path: Path) -> None:
    torch.save({"conv1.weight": Harmful(tmp_path / "done")}, tmp_path / "w.pth")
    with pytest.raises(DataCorrupt, match=r"w\.pth holds no weights that torch can read"):
        weight_files.read_weights(tmp_path / "w.pth")
    assert not (tmp_path / "done").exists()


def test_weights_that_were_on_a_gpu_are_read_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
        torch.save({"w": torch.ones(2)}, tmp_path / "w.pth")
    assert weight_files.read_weights(tmp_path / "w.pth")["w"].device.type == "cpu"


@pytest.mark.parametrize(
    ("error", "said"), [(OSError("no\nroute"), "no"), (OSError(), "OSError"), (RuntimeError("hash"), "hash")]
)
def test_a_download_that_fails_says_why(
    error: Exception, said: str, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def fail(*_: object, **options: object) -> None:
        asked.update(options)
        raise error

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    with pytest.raises(DataMissing) as caught:
        build("squeezenet", pretrained=True, download=True).begin()  # type: ignore[attr-defined]
    end = "set model.weights=FILE or model.pretrained=false"
    assert str(caught.value) == f"the ImageNet weights of squeezenet1_0 could not be downloaded: {said}; {end}"
    assert (asked["progress"], asked["check_hash"]) == (False, True)
