"""`python -m fedbench list`: the tables say what is there, and the documents what they say."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedbench.cli.list import COLUMNS, GROUPS, Listing, _paper, domains, kind_of
from fedbench.cli.list import listing as made
from fedbench.cli.program import main
from fedbench.config import compose, groups
from fedbench.config.schema import ProtocolConfig
from fedbench.core.errors import UnknownName
from fedbench.methods.cfl import CFL
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.fedper import FedPer
from fedbench.papers.reproduce import select
from fedbench.runs.config import resolve
from fedbench.runs.run import FAMILIES, NUMBERS, TEXT
from fedbench.sample_metrics import METRICS
from tests.helpers.tiers import tiered

ROOT = Path(__file__).parents[2]
listing = functools.cache(made)


def script() -> types.ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        return _loaded()


def _loaded() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("update_docs", ROOT / "scripts" / "update_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the tables


def test_defaults_lists_are_resolved_as_hydra_resolves_them() -> None:
    checked = 0
    for group in ("method", "protocol"):
        for name in groups.names(group):
            if "defaults:" in (groups.conf_dir() / group / f"{name}.yaml").read_text() and checked < 6:
                composed = resolve(compose.compose([f"{group}={name}"])).plain[group]
                assert groups.plain_option(group, name) == composed
                checked += 1
    assert checked >= 2


def test_parameters_are_what_is_set() -> None:
    config: dict[str, Any] = {
        "name": "x",
        "lr": 0.10,
        "flag": False,
        "none": None,
        "empty": [],
        "globs": ["@head", "a.*"],
        "base": {"name": "fedavg", "private": []},
        "inner": {"rate": 2.0, "deep": {"k": 3}},
    }
    assert (
        groups.parameters(config) == "lr=0.1, flag=false, globs=[@head, a.*], base=fedavg, inner.rate=2, inner.deep.k=3"
    )


def test_domains_are_shown_beside_the_parameters() -> None:
    assert domains(FedAvg) == {}
    assert ", ".join(f"{key} {domain}" for key, domain in domains(CFL).items()) == (
        "eps1 ≥ 0, eps2 ≥ 0, gamma_max in [0, 1], linkage single or complete, warmup ≥ 0, smallest ≥ 2"
    )
    assert domains(ProtocolConfig)["local.epochs"] == "≥ 1 or null"
    assert domains(FedCollab)["discriminator.lr"] == "> 0"
    rows = {row["partition"]: row for row in listing("partitions").rows}
    assert rows["homo"]["domains"] == "num_clients ≥ 1"


@pytest.mark.parametrize(
    "kind", tiered(["datasets", "partitions", "models", "protocols", "tables", "figures"], quick=["datasets", "models"])
)
def test_every_table_has_a_row_for_every_file(kind: str) -> None:
    table = listing(kind)
    group = {"datasets": "dataset"}.get(kind, kind.removesuffix("s"))
    assert sorted(row[table.columns[0]] for row in table.rows) == groups.names(group)
    for row in table.rows:
        assert tuple(row) == table.columns
        assert row[table.columns[1]]
    assert table.markdown().count("\n") == 2 + len(table.rows)


def test_every_column_of_a_row_has_a_meaning() -> None:
    """Names in capitals stand for sets, rules, metrics, modalities and programs."""
    written = " ".join(COLUMNS).split()
    patterns = [re.sub("[A-Z]+", ".+", name) for name in (*written, "seconds_.+")]
    names = (*TEXT, *NUMBERS, *(f"{family}x" for family in FAMILIES))
    assert [name for name in names if not any(re.fullmatch(each, name) for each in patterns)] == []
    assert [row["metric"] for row in listing("metrics").rows] == [*METRICS]
    assert all(row["meaning"] for row in listing("metrics").rows)


@pytest.mark.slow
def test_a_variant_shows_what_it_changes() -> None:
    rows = {row["method"]: row["parameters"] for row in listing("presets").rows}
    assert [name for name in rows if "." not in name] == groups.names("method")
    assert rows["fedprox"] == "mu=0.1"
    assert rows["fedavg"] == "-"
    assert rows["fedsac_similarity"] == "as fedsac, but alpha=0"
    assert rows["fedsac_literal"] == "as fedsac, but similarity=parameters, snap=null"
    assert rows["fedcollab"].startswith("base=fedavg, C=10")
    assert rows["fedcollab, discriminator.*"].startswith("hidden=200, rounds=200, batch=32")
    assert rows["fedcollab_code"] == (
        "as fedcollab, but inputs=normalised, discriminator.rounds=2000, discriminator.report=best"
    )


@pytest.mark.slow
def test_methods_are_grouped_by_what_a_client_has_of_its_own() -> None:
    rows = {row["method"].partition(",")[0]: row for row in listing("methods").rows}
    assert len(rows) == len(listing("methods").rows)
    assert sorted(", ".join(row["method"] for row in rows.values()).split(", ")) == groups.names("method")
    assert rows["fedsac"]["method"].startswith("fedsac, fedsac_code, ")
    wanted = {
        "fedprox": "one global model",
        "fedyogi": "server steps",
        "finetune": "adaptation",
        "fedas": "heads, and other parts",  # by its base, FedPer
        "ditto": "whole models",
        "fedem": "mixtures",
        "fedrc": "clusters",  # though below FedEM
        "pfedgraph": "graphs",
        "ifca": "clusters",
    }
    assert {name: rows[name]["group"] for name in wanted} == wanted
    assert rows["ditto"]["kept by clients"] == "personal/* [N, ...], v_k"
    assert rows["fedselect"]["kept by clients"].endswith("which were personal in the last training"), "of two lines"
    assert "2021" in rows["ditto"]["paper"]
    assert rows["ditto"]["what it does"] == "FedAvg, and a personal model pulled towards the global one."
    assert rows["fedyogi"]["paper"] == rows["fedadam"]["paper"], "a class of ours may have its base's"
    assert [row["group"] for row in rows.values()] == sorted(
        (row["group"] for row in rows.values()), key=[kind.name for kind in GROUPS].index
    )
    named = " ".join(kind.methods for kind in GROUPS).split()
    assert len(named) == len(set(named))
    assert set(named) <= set(rows)
    grouped = {name: row["group"] for row in listing("groups").rows for name in row["methods"].split(", ")}
    assert grouped == {name: row["group"] for name, row in rows.items()}
    assert "other personal models" not in grouped.values(), "name it in GROUPS of fedbench/cli/list.py"


def test_a_method_of_another_package_is_grouped_by_its_base_or_its_family() -> None:
    class Mine(FedPer):
        pass

    class Mixed(FedAvg):
        family: ClassVar[str] = "personalised"

    assert kind_of(Mine()).name == "heads, and other parts"
    assert kind_of(Mixed()).name == "other personal models"
    assert _paper(Mixed) == "-", "McMahan et al. did not write it"
    Mixed.paper = "Mine, 2026"
    assert _paper(Mixed) == "Mine, 2026"


def test_data_sets_show_their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))
    rows = {row["data set"]: row for row in made("datasets").rows}
    assert rows["synthetic"]["state"] == "ready"
    assert rows["cifar10"]["state"] == "missing"
    assert "python -m fedbench prepare cifar10" in rows["cifar10"]["how to get it"]
    markdown = made("datasets").markdown()
    assert "state" not in markdown.splitlines()[0]
    assert str(tmp_path) not in markdown, "the same on every machine"


@pytest.mark.slow
def test_protocols_show_what_differs_from_the_schema() -> None:
    rows = {row["protocol"]: row for row in listing("protocols").rows}
    found = rows["fedcollab_label_shift"]["parameters"].split(", ")
    assert "test.pool=true" in found
    assert not any(word.startswith("score=") for word in found)


def test_markdown_escapes_the_bar() -> None:
    table = Listing("t", [{"a": "x|y", "b": "2"}], local=("b",))
    assert table.markdown() == "| a |\n| --- |\n| x\\|y |\n"


def test_the_command_prints_tables_and_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "partitions"]) == 0
    assert "homo" in capsys.readouterr().out
    assert main(["list", "partitions", "--markdown"]) == 0
    assert capsys.readouterr().out == listing("partitions").markdown()
    assert main(["list", "partition"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown list 'partition'; nearest: partitions")
    with pytest.raises(UnknownName):
        groups.plain_option("method", "fedavgg")


# --- the documents


@pytest.mark.slow
def test_the_generated_parts_are_what_is_made_today() -> None:
    documents = script()
    found: set[str] = set()
    for file in documents.files():
        text = file.read_text(encoding="utf-8")
        found |= {kind for kind in documents.MADE if f"<!-- {kind} -->" in text}
        assert documents.updated(text) == text, f"{file.name}: run `make docs`"
    assert found == set(documents.MADE)


@pytest.mark.slow
def test_the_commands_are_those_that_fill_the_tables() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        commands = importlib.import_module("update_docs").commands().splitlines()[1:-1]
    assert "make reproduce-fedcollab-t1 columns=1" in commands
    assert "make reproduce-fedcollab-t2-open partition=label_shift rows=7 seeds=[0,3,4]" in commands
    assert "make reproduce-fedsac-t2 substitute=captioned scale=quick" in commands
    for each in commands:
        name, *words = each.removeprefix("make reproduce-").split()
        assert select([f"table={name.replace('-', '_')}", *words])[0].table in groups.names("table")


def test_the_changelog_lists_added_options_and_changes_of_code_that_changed_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = script()
    keys = documents.keys().splitlines()
    assert "| `method.restart=false` | pfedme |" in keys
    assert "| `protocol.optimizer.state=fresh` | every run |" in keys, "of a dataclass inside"
    assert not [line for line in keys if "method.lam=" in line], "which every recorded key holds"
    lines = [
        "part,old,new,reason",
        "method,1,2,a; 3 runs equal those of abc to the bit (scripts/same_numbers.py)",
        "method,3,4,a; 9 runs equal those of abc to the bit (scripts/same_numbers.py)",
        "engine,5,6,b",
    ]
    (tmp_path / "same.csv").write_text("\n".join(lines))
    monkeypatch.setattr(documents, "SAME_NUMBERS", tmp_path / "same.csv")
    assert documents.code().splitlines()[2:] == ["| method | 2 |", "| engine | 1 |"]
