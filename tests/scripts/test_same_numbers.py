"""Codes are said to give the same numbers only where every run that both made is equal to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.core.checked import Archive
from fedbench.methods.fedprox import FedProx
from scripts import same_numbers
from scripts.same_numbers import SMALL, compare, numbers

RUN = [*SMALL, "model=mlp", "method=fedprox"]


@pytest.mark.slow
def test_the_list_has_each_method_alone_and_inside_others_each_model_and_partition() -> None:
    chosen = [dict(each.split("=", 1) for each in overrides) for overrides in same_numbers.runs()]
    assert {"fedavg", "sosicfl_code", "oracle"} <= {each.get("method") for each in chosen}
    assert {("fedcollab", "ditto"), ("oracle", "sosicfl"), ("per_kind", "fedprox")} <= {
        (each.get("method"), each.get("method/base")) for each in chosen
    }
    assert {"resnet18", "small_pair", "textcnn"} <= {each.get("model") for each in chosen}
    assert {"fold_code", "label_shift"} <= {each.get("partition") for each in chosen}
    assert {"fedrema_code", "pfedsim"} <= {each.get("protocol") for each in chosen}
    validated = [each for each in chosen if "protocol.test.val_fraction" in each]
    assert {"fedfomo", "fedcollab"} <= {each["method"] for each in validated}, "which read validation samples"


@pytest.mark.slow
def test_a_run_has_the_same_hash_again_and_another_once_an_equation_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = numbers(RUN)
    assert numbers(RUN) == first
    penalty = FedProx.loss
    monkeypatch.setattr(FedProx, "loss", lambda self, *args: penalty(self, *args) * (1 + 1e-6))
    key, code, digest = numbers(RUN)
    assert (key, code) == first[:2]
    assert digest != first[2]


def test_what_begins_late_begins() -> None:
    config = same_numbers.within_reach([*SMALL, "method=sosicfl_code"])
    assert config.method.start_round <= config.protocol.rounds
    assert same_numbers.within_reach([*SMALL, "method=sosicfl"]).method.start_round == 0


def test_a_part_is_the_same_if_all_runs_that_it_took_part_in_are() -> None:
    old = {
        "k1": ("fedavg on mlp", {"method": "a", "engine": "x"}, "1"),
        "k2": ("ditto on mlp", {"method": "d", "engine": "x"}, "2"),
        "k3": ("fedavg on lenet", {"method": "a", "engine": "x"}, "3"),
        "gone": ("an earlier setting", {"method": "d", "engine": "x"}, "4"),
    }
    new = {
        "k1": ("fedavg on mlp", {"method": "b", "engine": "y"}, "1"),
        "k2": ("ditto on mlp", {"method": "d", "engine": "y"}, "other"),
        "k3": ("fedavg on lenet", {"method": "b", "engine": "y"}, "3"),
    }
    same, apart = compare(old, new)
    assert same == {("method", "a", "b"): 2}
    assert apart == {("engine", "x", "y"): ["ditto on mlp"]}


def test_lines_that_lead_from_no_result_are_dropped(tmp_path: Path) -> None:
    a, b, c, d, e = (letter * 12 for letter in "abcde")
    (tmp_path / "runs.csv").write_text(f"code\nengine:{d}\n")
    Archive(tmp_path / "table.zip", "").write({"rows.csv": f"code\nmethod:{a}\n".encode()})
    lines = [["method", a, b, "first"], ["method", d, b, "of no result"], ["method", b, c, "then"]]
    lines.append(["method", a, e, "another component of the same hash"])
    assert same_numbers.needed(lines, same_numbers.recorded(tmp_path)) == [lines[0], *lines[2:]]
