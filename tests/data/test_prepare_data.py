"""Whole data sets from their published archives to a run; the command that prepares them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbench.cli.prepare import parse_request, prepare
from fedbench.cli.program import main
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, UnknownName
from fedbench.data.datasets import DATASETS
from tests.data.serving import Handler, pack, publish
from tests.helpers import real_formats

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.mark.slow
@pytest.mark.parametrize("name", real_formats.WRITERS)
def test_every_data_set_goes_from_its_published_archives_to_a_run(
    name: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(name, tmp_path / "theirs", server, monkeypatch)
    with pytest.raises(DataMissing, match="is in none of"):
        DATASETS.build({"name": name, "partial": True}).load()
    assert Handler.asked == [], "no network without being asked"
    line = prepare({"name": name, "partial": True})
    assert f"{name}: downloaded, verified and prepared: " in line
    data = DATASETS.build({"name": name, "partial": True}).load()
    direct = DATASETS.build({"name": name, "partial": True, "root": str(tmp_path / "theirs" / "files")}).load()
    assert data.fingerprint == direct.fingerprint
    asked = len(Handler.asked)
    assert f"{name}: was ready: " in prepare({"name": name, "partial": True})
    assert len(Handler.asked) == asked
    assert [p for p in (tmp_path / "data" / "downloads").iterdir() if not p.name.startswith(".")] == []


def test_a_data_set_is_fetched_only_as_far_as_it_is_missing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("mnist", tmp_path / "theirs", server, monkeypatch)
    gone = Handler.files.pop("t10k-images-idx3-ubyte.gz")
    with pytest.raises(DataMissing, match=r"could not be downloaded to .*data: .*404") as caught:
        prepare({"name": "mnist", "partial": True})
    assert "\n" not in str(caught.value)
    Handler.files["t10k-images-idx3-ubyte.gz"] = gone
    Handler.asked.clear()
    prepare({"name": "mnist", "partial": True})
    assert [path for path, _ in Handler.asked] == ["/t10k-images-idx3-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]


def test_an_altered_archive_never_becomes_a_data_set(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("cifar10", tmp_path / "theirs", server, monkeypatch)
    Handler.files["cifar-10-python.tar.gz"] = pack("cifar100", tmp_path / "others")["cifar-100-python.tar.gz"]
    with pytest.raises(DataCorrupt, match="not the published file"):
        prepare({"name": "cifar10", "partial": True})
    assert not (tmp_path / "data" / "cifar-10-batches-py").exists()


def test_a_run_may_download_if_it_is_told_to(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("fashion_mnist", tmp_path / "theirs", server, monkeypatch)
    options = {"name": "fashion_mnist", "partial": True, "root": str(tmp_path / "mine")}
    assert DATASETS.build({**options, "download": True}).load().num_train == 30
    assert (tmp_path / "mine" / "FashionMNIST" / "raw").is_dir()
    assert DATASETS.build(options).load().num_train == 30


def test_every_part_has_a_checksum_and_a_web_address() -> None:
    seen = set()
    for name in real_formats.WRITERS:
        for part in DATASETS.get(name).parts:  # type: ignore[attr-defined]
            assert re.fullmatch("[0-9a-f]{32}", part.md5)
            assert part.md5 not in seen
            seen.add(part.md5)
            for url in part.urls:
                assert re.match("https?://", url)
    assert len(seen) == 4 + 4 + 1 + 1 + 1 + 1 + 1 + 1 + 18


def test_requests_name_data_sets_and_their_options() -> None:
    found = parse_request(["cub", "text=true", "size=32", "mnist"])
    assert found == [{"name": "cub", "text": True, "size": 32}, {"name": "mnist"}]
    with pytest.raises(UnknownName, match="cifar100"):
        parse_request(["cifar1000"])
    with pytest.raises(ConfigError, match="without a data set before it"):
        parse_request(["text=true"])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setenv("COLUMNS", "500")
    return lambda *arguments: main(["prepare", *arguments])


def test_the_script_checks_prepares_and_reports(
    script: Callable[..., int],
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish("cifar100", tmp_path / "theirs", server, monkeypatch)
    root = str(tmp_path / "mine")

    def row() -> str:
        assert script("--check", "--root", root) == 0
        lines = capsys.readouterr().out.splitlines()
        assert {line.split()[0] for line in lines[1:]} == set(DATASETS)
        return next(line for line in lines if line.split()[0] == "cifar100")

    assert re.search(r"cifar100 +missing +run `python -m fedbench prepare cifar100`", row())
    assert Handler.asked == []
    assert script("cifar100", "partial=true", "--root", root) == 0
    done = capsys.readouterr()
    assert "cifar100: downloaded, verified and prepared: 200 + 40 samples of 3 x 32 x 32, 100 classes" in done.out
    assert "downloading cifar-100-python.tar.gz: 100 %" in done.err
    assert re.search(rf"cifar100 +ready, read at first use +{root}/cifar-100-python", row())
    # Of some data sets, with options; whether one is missing.
    assert script("--check", "cifar100", "partial=true", "digits", "--root", root) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [re.split("  +", line)[:2] for line in lines] == [
        ["cifar100 partial=True", "ready"],
        ["digits", "ready"],
    ]
    assert script("--check", "digits", "mnist", "--root", root) == 1
    assert "fedbench prepare mnist" in capsys.readouterr().out
    assert script("--check", "cifra100") == 2
    assert "nearest: cifar100" in capsys.readouterr().err


def test_the_script_goes_on_after_a_failure_and_says_so(
    script: Callable[..., int],
    server: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = DATASETS.get("cifar10")
    part = dataclasses.replace(source.parts[0], urls=(f"{server}gone",))  # type: ignore[attr-defined]
    monkeypatch.setattr(source, "parts", (part,))
    assert script("cifar10", "digits") == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: data set 'cifar10' could not be downloaded")
    assert said.err.count("\n") == 1
    assert "digits: was ready: 1,442 + 355 samples of 1 x 8 x 8, 10 classes; from scikit-learn" in said.out
    assert script("cifra10") == 2
    assert "nearest: cifar10" in capsys.readouterr().err
    assert script() == 2
