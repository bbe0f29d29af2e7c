"""The shipped checks pass a method written outside the package, and each fails one that breaks its promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedbench.cli.program import main
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.engine.contract import Conformance
from fedbench.methods.fedavg import FedAvg
from fedbench.testing import CHECKS, check_method, checks, parametrize_with_checks, run
from fedbench.testing.toys import Subject
from tests.helpers import outside
from tests.helpers.tiers import sampled

OUTSIDE = "tests.helpers.outside"

BROKEN = [
    (checks.check_is_a_documented_value, outside.Undecorated, "dataclass"),
    (
        checks.check_server_hooks_leave_their_arguments_alone,
        outside.WritesToTheServer,
        "wrote into the server",
    ),
    (
        checks.check_client_hooks_leave_their_arguments_alone,
        outside.WritesToTheModel,
        "wrote into the work tree",
    ),
    (checks.check_trees_keep_their_names_shapes_and_precision, outside.Growing, "leaves changed"),
    (checks.check_no_leaf_is_dead, outside.Keeping, "^mlp: memory 'head.bias' is never changed by `finish`; mlp: .*$"),
    (
        checks.check_no_leaf_is_dead,
        outside.Counting,
        "^mlp: memory 'rounds' changes no score, no upload and no other memory that does: no hook uses it; mlp: .*$",
    ),
    (
        checks.check_no_leaf_is_dead,
        outside.Chatty,
        "^mlp: upload 'size' of `finish` changes nothing that `aggregate` returns; batch_norm: .*$",
    ),
    (checks.check_no_leaf_is_dead, outside.Lively, "declared inert and of use: @head"),
    (checks.check_single_precision_stays_single, outside.Double, "float64 in a float32 run"),
    (checks.check_a_client_is_sent_the_same_in_whatever_company, outside.Crowded, "differs by"),
    (checks.check_collaboration_is_row_stochastic, outside.Lopsided, "rows of W sum to"),
    (checks.check_clients_that_are_too_small_are_refused, outside.Modest, "no ConfigError"),
    (checks.check_stacked_equals_looped, outside.Padded, "differ"),
    (checks.check_is_deterministic_whatever_else_is_random, outside.Loud, "global generator"),
    (checks.check_resumed_equals_uninterrupted, outside.Forgetful, "other numbers"),
    (checks.check_relabelled_clients_get_relabelled_models, outside.Crowded, "differ by"),
    (checks.check_relabelled_clients_get_relabelled_models, outside.Modest, "declares an exception"),
    (checks.check_stays_finite_and_moves, outside.Frozen, "did not move"),
]


@parametrize_with_checks([f"{OUTSIDE}:Momentum"])
def test_a_method_from_outside(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(
    ("check", "method", "message"),
    sampled(BROKEN, every=3),
    ids=[f"{case[1].__name__}-{case[0].__name__[6:]}" for case in BROKEN],
)
def test_a_broken_promise_is_told(check: Callable[[Subject], None], method: type[FedAvg], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(check, Subject.of(method))


def test_a_namespace_that_is_not_there_is_told_with_the_hook(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-method", f"{OUTSIDE}:Misnamed"]) == 1
    said = capsys.readouterr().out
    assert (
        "Misnamed.start failed in round 1 for client 1: LookupError: no leaf is in the namespace 'personal'; " in said
    )
    assert "the tree's namespaces: 'own'; if there may be none, use trees.under" in said
    assert "in start\n" in said
    assert "as above" in said


def test_traffic_that_is_not_counted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject.of("fedavg")
    subject.run("mlp").state.bytes_up += 8
    with pytest.raises(AssertionError, match="recorded"):
        run(checks.check_traffic_is_what_was_sent, subject)


def test_what_cannot_be_pickled_is_told() -> None:
    with pytest.raises(Exception, match="pickle"):
        check_method(outside.Unpicklable)


def test_methods_are_given_in_four_ways() -> None:
    for given in ("fedavg", FedAvg, FedAvg(), "fedbench.methods.fedavg:FedAvg"):
        assert Subject.of(given).method == FedAvg()
    check_method(FedAvg(), checks=CHECKS[:1])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("fedavgg", UnknownName, "nearest: fedavg"),
        (
            "nowhere.at_all:Class",
            ConfigError,
            "No module named .*; install its package, or add its folder to PYTHONPATH",
        ),
        (f"{OUTSIDE}:Nobody", ConfigError, "Nobody"),
        (f"{OUTSIDE}:Conformance", ConfigError, "not a subclass"),
        (f"{OUTSIDE}:Unfinished", ConfigError, "abstract"),
    ],
)
def test_what_is_no_method_is_refused(given: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Subject.of(given)


def test_settings_reach_into_fields() -> None:
    method = Subject.of("fedcollab").method
    assert (method.restarts, method.discriminator.rounds, method.discriminator.lr) == (3, 20, 0.01)
    assert FedAvg().conformance == Conformance()


@pytest.mark.slow
def test_the_command_says_what_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-method", "fedavg"]) == 0
    said = capsys.readouterr().out
    assert said.count("holds ") == len(CHECKS)
    assert f"fedavg: {len(CHECKS)} of {len(CHECKS)} checks hold" in said
    assert main(["check-method", f"{OUTSIDE}:Frozen"]) == 1
    said = capsys.readouterr().out
    assert "FAILS  stays finite and moves" in said
    assert "did not move" in said
    assert main(["check-method", "fedavgg"]) == main(["check-method"]) == 2
    assert "nearest" in capsys.readouterr().err
