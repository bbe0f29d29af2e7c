"""What goes wrong is one line, no traceback, and not 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.cli.program import main
from fedbench.config import compose, groups
from fedbench.config.messages import one_line
from fedbench.core.errors import DataMissing, UnknownName
from fedbench.runs.config import resolve
from tests.helpers.runner import FakeRunner

pytestmark = pytest.mark.usefixtures("elsewhere")
BAD = [
    (["method=fedavgg"], "unknown method 'fedavgg'; nearest: fedavg"),
    (
        ["method=mine"],
        "; a new one takes conf/method/mine.yaml and, for its class, a line in fedbench/methods/__init__.py",
    ),
    (["dataset=digit"], "unknown dataset 'digit'; nearest: digits"),
    (["protocol=quik"], "unknown protocol 'quik'; nearest: quick"),
    (["partition=dirr0.1"], "unknown partition 'dirr0.1'; nearest: dir"),
    (["partition=label_shift3"], "unknown partition 'label_shift3'; nearest: label_shift"),
    (["method=fedprox_code2"], "unknown method 'fedprox_code2'; nearest: fedprox_code"),
    (["method=fedcollab", "method/base=fedprx"], "unknown method/base 'fedprx'; nearest: fedprox"),
    (["method=fedprox", "method.muu=1"], "unknown key 'method.muu'; nearest: method.mu"),
    (["protocol.round=3"], "unknown key 'protocol.round'; nearest: protocol.rounds"),
    (["protocol.optimiser.lr=3"], "unknown key 'protocol.optimiser.lr'; nearest: protocol.optimizer"),
    (["protocol.optimizer.lrr=3"], "nearest: protocol.optimizer.lr"),
    (["mu=1"], "unknown key 'mu'; nearest: method.mu with method=fedprox|fedprox_code"),
    (["method=fedprox", "mu=1"], "unknown key 'mu'; nearest: method.mu"),
    (["lr=1"], "protocol.optimizer.lr"),
    (["rounds=1"], "unknown key 'rounds'; nearest: protocol.rounds"),
    (["round=1"], "protocol.rounds"),
    (["epochs=1"], "unknown key 'epochs'; nearest: protocol.local.epochs"),
    (["alpha=5"], "unknown key 'alpha'; nearest: partition.alpha"),
    (["protocol.lr=1"], "protocol.optimizer.lr"),
    (["protocl.rounds=1"], "unknown key 'protocl.rounds'; nearest: protocol"),
    (["sed=1"], "unknown key 'sed'; nearest: seed"),
    (["methods=fedavg"], "unknown key 'methods'; nearest: method"),
    (["model.width=3"], "keys of a model need the model named first: model=net model.width=..."),
    (
        ["model=auto", "model.width=3"],
        "keys of a model need the model named first: model=net model.width=...",
    ),
    (["method=fedavg", "method.mu=3"], "unknown key 'method.mu': method=fedavg has none"),
    (["method=fedavg", "method/base=fedavg"], "the chosen method takes no 'base'"),
    (["method=fedprox", "method.mu=abc"], "method 'fedprox' (mu): Value 'abc'"),
    (["+method.extra=1"], "unknown key of method 'fedcollab' 'extra'"),
    (["+extra=1"], "unknown key of the config 'extra'"),
    (["protocol.rounds=ten"], "protocol (rounds): Value 'ten'"),
    (["protocol.rounds=0"], "protocol.rounds must be at least 1"),
    (["protocol.report=first"], "unknown protocol.report 'first'"),
    (["seed=-1"], "seed must be at least 0"),
    (["seed=0,1"], "add -m for a sweep"),
    (["seed=range(3)"], "add -m for a sweep"),
    (["fedavg"], "'fedavg' is not of the form GROUP=OPTION or key=value"),
    (["method=[fedavg"], "cannot read 'method=[fedavg'"),
    (["method=3"], "Config group override must be a string or a list. Got int"),
    (["~method"], "method: no option chosen"),
    (["runs_dir=${nowhere}"], "nowhere"),
    (["seed=???"], "seed"),
    (["partition=dir0"], "alpha must be positive"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_has_a_one_line_message(toy: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of many classes; the message is what counts
        resolve(compose.compose(arguments))
    line = one_line(caught.value)
    assert line is not None
    assert message in line
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize("arguments", [["method=fedavgg"], ["-m", "method=fedavg,fedavgg"], ["protocol.rounds=0"]])
def test_bad_input_exits_with_one_line_and_leaves_nothing(
    toy: Path, executed: FakeRunner, elsewhere: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert executed == []
    assert list(elsewhere.iterdir()) == []


def test_error_inside_a_run(
    toy: Path,
    executed: FakeRunner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    executed.fail(DataMissing("cifar10 is not here\nfetch it"), 0)
    assert main([]) == 2
    assert capsys.readouterr().err == "error: cifar10 is not here fetch it\n"


def test_full_disk_is_one_line_and_a_defect_is_a_traceback(
    toy: Path,
    executed: FakeRunner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    executed.fail(OSError(28, "No space left on device", "runs/x"), 0)
    assert main([]) == 2
    assert capsys.readouterr().err == "error: No space left on device: runs/x\n"
    executed.fail(ZeroDivisionError("defect"), 0)
    assert main([]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_debug_shows_the_traceback(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDBENCH_DEBUG", "1")
    assert main(["method=fedavgg"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interruption_says_how_to_resume(
    toy: Path,
    executed: FakeRunner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    executed.fail(KeyboardInterrupt(), 0)
    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted\ngo on: python -m fedbench\n"


def test_unknown_names_in_a_registry() -> None:
    with pytest.raises(
        UnknownName, match=r"nearest: digits; a new one takes a line in fedbench/data/datasets/__init__\.py$"
    ):
        groups.registry("dataset").get("digitz")
