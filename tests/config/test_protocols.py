"""Protocols name their papers and fit their partitions; impossible ones are refused. Their numbers: test_stated.py."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from fedbench.cli.list import listing
from fedbench.config import compose, groups, schema
from fedbench.config.schema import ProtocolConfig
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.runs.config import resolve
from fedbench.runs.folder import labels_of
from tests.helpers.tiers import sampled

FILES = sorted(file.stem for file in (groups.conf_dir() / "protocol").glob("*.yaml"))


def protocol(*overrides: str) -> ProtocolConfig:
    return resolve(compose.compose(overrides)).protocol


@pytest.mark.parametrize("name", sampled(FILES, every=2))
def test_every_file_says_where_its_numbers_come_from(name: str) -> None:
    run = resolve(compose.compose([f"protocol={name}"]))
    assert run.protocol.name == labels_of(run).protocol == name
    text = (groups.conf_dir() / "protocol" / f"{name}.yaml").read_text()
    assert text.startswith("# ")
    source = ("PFLlib", "FedSaC", "pFedSim", "SosicFL", "FedReMa", "FedCollab", "FLUX", "first look")
    assert any(word in text.splitlines()[0] for word in source)


def test_a_protocol_that_keeps_its_parent_s_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs would be called quick."""
    shutil.copytree(groups.conf_dir(), tmp_path / "conf")
    file = tmp_path / "conf" / "protocol" / "fedx.yaml"
    monkeypatch.setattr(groups, "conf_dir", lambda: tmp_path / "conf")
    for line in ("", "name: quick\n"):
        file.write_text(f"defaults: [quick, _self_]\n{line}rounds: 3\n")
        with pytest.raises(ConfigError, match=r"fedx\.yaml needs the line .name: fedx."):
            compose.compose(["protocol=fedx"])
    file.write_text("defaults: [quick, _self_]\nname: fedx\nrounds: 3\n")
    assert protocol("protocol=fedx").name == "fedx"


def test_a_changed_protocol_is_headed_by_what_was_changed() -> None:
    changed = (
        "protocol=fedrema_code",
        "protocol.rounds=3",
        "protocol.optimizer.lr=0.5",
        "protocol.augment=[flip]",
    )
    said = labels_of(resolve(compose.compose(changed))).protocol
    assert said == "fedrema_code (rounds=3, optimizer.lr=0.5, augment=[flip])"


RECEIVED = {  # of an own score, by what is said of it; the methods that neither names are scored as trained
    "the one model of all clients": {
        "dp_fedavg", "fedadagrad", "fedadam", "fedavg", "fedavgm", "feddyn", "fedgen", "fediot", "fedlora", "fednova",
        "fedntd", "fedprox", "fedyogi", "ffa_lora", "floco", "moon", "per_kind", "robust", "scaffold", "sosicfl",
        "sosicfl_all", "sosicfl_code",
    },
    "fitted to the client's samples when it is scored": {
        "fedala", "fedbabu", "finetune", "finetune_all", "finetune_head", "finetune_lpft", "finetune_norm",
        "ifca", "knnper", "perfedavg", "pfedfda",
    },
}  # fmt: skip
BOTH = {
    "fedsac", "fedsac_code", "fedsac_complementarity", "fedsac_literal", "fedsac_multimodal", "fedsac_similarity",
    "pfedgraph",
}  # fmt: skip
CLUSTERED = {
    "cfl", "fedcluster", "fedcollab", "fedcollab_code", "fedrc", "fesem", "flux", "kmeans", "oracle", "pacfl",
    "pacfl_code",
}  # fmt: skip


@pytest.mark.slow
def test_every_method_is_scored_under_every_protocol() -> None:
    """A global method as received, and a personalised one as trained, where the protocol leaves it to them."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for row in listing("scored").rows:
        names = groups.names("method") if row["methods"] == "all" else row["methods"].split(", ")
        for pair in itertools.product(row["protocols"].split(", "), names):
            assert pair not in found
            found[pair] = row["scored"], row["why"]
    assert set(found) == set(itertools.product(FILES, groups.names("method")))
    for (name, method), (model, why) in found.items():
        received = [reason for reason, methods in RECEIVED.items() if method in methods]
        if not name.startswith("fedsac"):
            assert model == "received", (name, method)
        elif received:
            assert (model, why) == ("received", *received), (name, method)
        else:
            assert model == ("both" if method in BOTH else "trained"), (name, method)
            assert ("cluster" in why) == (method in CLUSTERED), (name, method)


@pytest.mark.parametrize(
    ("given", "score"),
    sampled(
        [
            (["method=fedavg"], "received"),
            (["method=local"], "trained"),
            (["method=fedavg", "protocol.score=both"], "both"),
            (["method=ditto", "protocol.score=received"], "received"),
            (["method=fedbabu", "method.tune_epochs=0"], "trained"),
            (["method=per_kind", "method/base=pfedgraph"], "both"),
            (["method=per_kind", "method/base=ditto"], "trained"),
            (["method=fedadam", "method/base=fedrep"], "trained"),
            (["method=fedadam", "method/base=finetune"], "received"),
            (["method=fedavg", "method.private=[@head]"], "trained"),
            (["method=fedprox", "method.private=[@head]"], "trained"),
            (["method=fedadam", "+method.base.private=[@head]"], "trained"),
            (["method=fedcollab", "method/base=finetune"], "received"),
            (["method=fedsac", "protocol.report=last", "protocol.per_client=false"], "trained"),
        ],
        every=4,
    ),
    ids=" ".join,
)
def test_fedsacs_protocol_scores_the_methods_own_model_unless_told(given: list[str], score: str) -> None:
    assert protocol("protocol=fedsac", *given).score == score


def test_a_model_that_was_told_is_said_and_has_the_key_of_the_methods_own() -> None:
    own, told = (
        resolve(compose.compose(["protocol=fedsac", "method=fedavg", *more]))
        for more in ([], ["protocol.score=received"])
    )
    assert own.key == told.key
    assert labels_of(own).protocol == "fedsac"
    assert labels_of(told).protocol == "fedsac (score=received)"
    assert own.local is not None
    assert own.local.protocol.score == "trained", "Local is scored as Local is"


@pytest.mark.parametrize(
    ("given", "of_twenty"),
    [("1", 1), ("2", 2), ("20", 20), ("all", 20), ("100%", 20), ("10%", 2), ("12.5%", 2), ("1%", 1)],
)
def test_a_cohort_is_a_count_or_a_share(given: str, of_twenty: int) -> None:
    assert protocol(f"protocol.cohort={given}").cohort_size(20) == of_twenty


def test_a_cohort_has_the_key_that_was_recorded() -> None:
    """A share up to 1 and a count above, as numbers; one client had none."""
    keyed = {given: schema.cohort_key(given) for given in ("all", "100%", "10%", "7%", "12.5%", "2", "30", "1")}
    assert keyed == {
        "all": 1.0,
        "100%": 1.0,
        "10%": 0.1,
        "7%": 0.07,
        "12.5%": 0.125,
        "2": 2.0,
        "30": 30.0,
        "1": "1 client",
    }
    assert all(isinstance(each, float) for each in keyed.values() if each != "1 client")
    keys = [resolve(compose.compose([f"protocol.cohort={given}"])).key for given in ("1", "all", "100%")]
    assert keys[0] != keys[1] == keys[2]


def test_papers_partitions_fit_their_protocols() -> None:
    """The cohort of each setting is a count or share of the partition's clients."""
    assert protocol("protocol=pfedsim").cohort_size(100) == 10
    assert protocol("protocol=pfedsim").cohort_size(120) == 12  # DomainNet
    assert protocol("protocol=sosicfl_simplecnn").cohort_size(100) == 30
    assert protocol("protocol=fedsac_large").cohort_size(50) == 10
    assert protocol("protocol=fedrema").cohort_size(20) == 20


@pytest.mark.parametrize("more", ["protocol.report=best_test", "protocol.score=trained"])
def test_a_test_set_that_is_read_once_leaves_no_choice(more: str) -> None:
    with pytest.raises(FedbenchError, match="leaves nothing to choose from"):
        protocol("protocol.test.once=true", "protocol.test.val_fraction=0.2", more)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("protocol.cohort=0", "at least 1"),
        ("protocol.cohort=0%", "above 0%"),
        ("protocol.cohort=100.5%", "up to 100%"),
        ("protocol.cohort=10.5", r"a count \(5\), a share \(10%\) or all, got 10\.5$"),
        ("protocol.cohort=0.1", "protocol.cohort=10%"),
        ("protocol.cohort=1.0", "protocol.cohort=100%"),
        ("protocol.cohort=-1", r"a count \(5\)"),
        ("protocol.cohort=some", r"a count \(5\)"),
        ("protocol.augment=[crop4,mirror]", "unknown protocol.augment 'mirror'"),
        ("protocol.test.fraction=1", r"\[0, 1\)"),
        ("protocol.report=best_val", "val_fraction > 0"),
        ("protocol.test.sets=validation", "val_fraction > 0"),
        ("protocol.test.once=true", "set protocol.test.val_fraction > 0$"),
        ("protocol.per_client=true", "use best_val, or per_client=false"),
        ("protocol.local.epochs=null", "epochs or iterations"),
        ("protocol.score=later", "unknown protocol.score 'later'"),
    ],
)
def test_impossible_protocols_are_refused(override: str, reason: str) -> None:
    with pytest.raises(FedbenchError, match=reason):
        protocol(override)
