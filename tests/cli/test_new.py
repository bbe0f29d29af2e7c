"""`python -m fedbench new`: what it writes works as it is, and stands where it belongs."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from fedbench import testing
from fedbench.cli import new
from fedbench.cli.program import main
from fedbench.config import groups
from fedbench.config.fields import Registry
from fedbench.core.rng import numpy_rng
from fedbench.data.partitions.base import Pool
from fedbench.papers import spec

ROOT = Path(__file__).parents[2]


def written(kind: str, name: str) -> dict[str, str]:
    """The files that a new component takes, by their place in the clone."""
    return {path.relative_to(ROOT).as_posix(): text for path, text in new._files(ROOT, kind, name).items()}


def built(kind: str, folder: Path) -> Any:
    """The new component "my_own", of the class and the YAML that are written."""
    files = written(kind, "my_own")
    module = next(text for path, text in files.items() if path.endswith("/my_own.py"))
    (folder / f"written_{kind}.py").write_text(module)
    importlib.invalidate_caches()
    config = yaml.safe_load(files[f"conf/{kind}/my_own.yaml"])
    tuned = config.pop(groups.TUNE, {})
    registry: Registry[Any] = Registry(kind, {"my_own": f"written_{kind}:MyOwn"})
    component = registry.build(config)
    fields = {field.name for field in dataclasses.fields(component)}
    assert set(config) - {"name"} == fields, "the YAML lists every field"
    assert set(tuned) <= fields
    assert bool(tuned) == (kind == "method"), "a leaderboard tunes more than its rate"
    assert "TODO" in module
    assert "TODO" in groups_header(files[f"conf/{kind}/my_own.yaml"])
    return component


def groups_header(text: str) -> str:
    return text.splitlines()[0].removeprefix("# ")


@pytest.fixture(autouse=True)
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind in new.PARTS:
        monkeypatch.delitem(sys.modules, f"written_{kind}", raising=False)


@pytest.mark.slow
def test_a_new_method_keeps_the_promises_of_methods(tmp_path: Path) -> None:
    testing.check_method(built("method", tmp_path), testing.CHECKS[:3] + testing.ESSENTIAL)


def test_a_new_data_set_reads(tmp_path: Path) -> None:
    source = built("dataset", tmp_path)
    data = source.load()
    assert source.state().ready
    assert (len(data), data.num_train, data.classes, data.shape) == (1000, 800, 10, (1, 8, 8))
    assert data.x[data.y == 9].mean() > data.x[data.y == 0].mean() + 1  # something can be learnt
    assert len(np.unique(data.y[800:])) == 10


def test_a_new_partition_deals_every_sample_once(tmp_path: Path) -> None:
    labels = np.arange(105) % 10
    clients = built("partition", tmp_path).assign(Pool(np.arange(105), labels, 10), numpy_rng(0, "test")).clients
    assert sorted(map(len, clients)) == [10] * 5 + [11] * 5
    assert sorted(np.concatenate(clients)) == list(range(105))


def test_a_new_model_is_a_network_with_a_head(tmp_path: Path) -> None:
    model = built("model", tmp_path)
    net = model.build((1, 8, 8), 10)
    assert model.label == "my_own64"
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert list(dict(net.named_children())) == ["flatten", "body", "head"]


def test_a_new_table_parses_and_names_what_it_lacks() -> None:
    files = written("table", "mine_t3")
    table = spec.parse_spec(yaml.safe_load(files["conf/table/mine_t3.yaml"]))
    assert (list(files), table.paper, table.table) == (["conf/table/mine_t3.yaml"], "mine", "T3")
    assert spec.parse_spec(yaml.safe_load(written("table", "mine")["conf/table/mine.yaml"])).table == "T1"


@pytest.mark.parametrize("kind", groups.REGISTRIES)
@pytest.mark.parametrize("name", ["aaa", "fedb", "zzz"])
def test_the_registry_has_one_line_more_in_its_place(kind: str, name: str) -> None:
    path, text = next((path, text) for path, text in written(kind, name).items() if path.endswith("__init__.py"))
    before = (ROOT / path).read_text()
    added = [line for line in text.splitlines() if line not in before.splitlines()]
    assert len(added) == 1
    assert text.replace(f"{added[0]}\n", "") == before
    names = re.findall(r'^ {8}"(\w+)": "', text, re.MULTILINE)
    assert names.index(name) == sum(each < name for each in names)


def test_what_cannot_be_written_is_said_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def said(*words: str) -> str:
        assert main(["new", *words]) == 2
        return capsys.readouterr().err

    assert "a method or a module 'ditto' exists already" in said("method", "ditto")
    assert "'kinds' exists already" in said("model", "kinds")  # registered without a YAML of its name
    assert "'base' exists already" in said("partition", "base")  # a module
    assert "'parts' exists already" in said("method", "parts")  # a folder of modules
    assert "'My-Own' cannot name a module" in said("method", "My-Own")
    assert "'class' cannot name a module" in said("method", "class")
    assert "unknown kind 'metod'; nearest: method" in said("metod", "mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "conf_dir", lambda: tmp_path / "fedbench" / "conf")
        assert "new needs a clone of fedbench" in said("method", "mine")
    assert main(["new"]) == 2
    assert capsys.readouterr().out == f"{new.USAGE}\n"


@pytest.mark.slow
def test_in_a_clone_all_of_them_run_at_once(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for part in ("fedbench", "conf"):
        shutil.copytree(ROOT / part, clone / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", clone)

    def fedbench(*words: str, code: int = 0) -> str:
        environment = {**os.environ, "PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "fedbench", *words]
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    for kind in groups.REGISTRIES:
        assert "__init__.py" in fedbench("new", kind, "my_own")
    chosen = [f"{kind}=my_own" for kind in groups.REGISTRIES]
    fedbench(*chosen, "protocol.rounds=2", "runs_dir=runs")
    assert "my_own: " in fedbench("check-method", "my_own")
    fedbench("new", "table", "mine_t1")
    told = fedbench("reproduce", "table=mine_t1", "scale=smoke", "runs_dir=runs", "--dry-run")
    assert "mine,T1,digits,dir0.1,FedAvg,acc,MEAN,STD," in told
    assert "complete: 3 of 3 cells" in fedbench("reproduce", "table=mine_t1", "scale=smoke", "runs_dir=runs")
