"""What goes wrong is one line, no traceback, and not 0."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.cli import program
from fedbench.cli.program import main
from fedbench.config import compose, groups
from fedbench.config.messages import explained, one_line
from fedbench.core.errors import ConfigError, DataMissing, FedbenchError, UnknownName
from fedbench.data.partitions.file import read_arrays
from fedbench.papers.evidence import KEYS
from fedbench.papers.reproduce import select
from fedbench.papers.selection import Selection
from fedbench.runs.config import RunConfig, resolve
from tests.helpers.runner import FakeRunner
from tests.helpers.said import lacks
from tests.helpers.tiers import sampled, tiered

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
    (["mu=1"], "unknown key 'mu'; nearest: method.mu with method="),
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
    (["partition=dir-1"], "dir takes a positive number, as in partition=dir0.1"),
    (["partition=dirichlet0.1"], "dir takes a positive number, as in partition=dir0.1"),
    (["hardware=gpu"], "unknown hardware 'gpu'; nearest: cpu, auto, cuda"),
    (["hardware.engine=fast"], "nearest: auto, looped, stacked, workers"),
    (["method=fedavg", "method.mu=3"], "unknown key 'method.mu': method=fedavg has none"),
    (["method=fedavg", "method/base=fedavg"], "the chosen method takes no 'base'"),
    (["method=fedprox", "method.mu=abc"], "method 'fedprox' (mu): Value 'abc'"),
    (["+method.extra=1"], "unknown key of method 'fedcollab' 'extra'"),
    (["+extra=1"], "unknown key of the config 'extra'"),
    (["protocol.rounds=ten"], "protocol (rounds): Value 'ten'"),
    (["protocol.optimizer=adam"], "protocol.optimizer is 'adam'; it must be a mapping of"),
    (["protocol.optimizer=adam"], "; for example protocol.optimizer.name=adam"),
    (["checkpoint=5"], "; for example checkpoint.seconds=5"),
    (["protocol.rounds=0"], "protocol.rounds must be at least 1"),
    (["protocol.report=first"], "unknown protocol.report 'first'"),
    (["seed=-1"], "seed must be at least 0"),
    (["seed=0,1"], "'seed=0,1' asks for several runs; add -m to the command, python -m fedbench -m ..., or call"),
    (["seed=range(3)"], "'seed=range(3)' asks for several runs; add -m to the command"),
    (["fedavg"], "'fedavg' is not of the form GROUP=OPTION or key=value; for example method=fedavg"),
    (
        ["run"],
        "'run' is not of the form GROUP=OPTION or key=value; for example method=fedavg, without spaces or dashes",
    ),
    (["hardware.device=gpu"], "hardware.device=gpu must be auto, cpu, cuda, or one GPU"),
    (["method=[fedavg"], "cannot read 'method=[fedavg'"),
    (["method=fedavg,"], "cannot read 'method=fedavg,': it ends too early"),
    (["method=[local,fedavg]"], "method=[local,fedavg] would mix them into one run; a run of each: -m method=local,"),
    (["protocol=[quick,pfllib]"], "a run of each: -m protocol=quick,pfllib (in Python fedbench.sweep)"),
    (["runs_dir=~/x"], """; quote it twice: 'runs_dir="~/x"'"""),
    (["runs_dir=ä/ö(1)"], """; quote it twice: 'runs_dir="ä/ö(1)"'"""),
    (["dataset.path=a=b"], """; quote it twice: 'dataset.path="a=b"'"""),
    (["runs_dir='~/x'"], "runs_dir=~/x: ~ is expanded only by shells"),
    (["record=cka"], "record is a list; write record=[cka]"),
    (["record='[cka@1]'"], "record is a list; write record=[cka@1]"),
    (["record=null"], "field 'record' is not Optional; give a list such as [], not null"),
    (["seed=null"], "Incompatible value null for field of type 'int'; give a whole number"),
    (["runs_dir=null"], "for field of type 'str'; give a text"),
    (["protocol.optimizer.lr=null"], "for field of type 'float'; give a number"),
    (["protocol.test.pool=null"], "for field of type 'bool'; give true or false"),
    (["wandb.tags=a"], "wandb.tags is a list; write wandb.tags=[a]"),
    (["method=3"], "method=3: an option has a name; choose one: method=NAME"),
    (["protocol=null"], "protocol=null: an option has a name; choose one: protocol=NAME"),
    (["~method"], "write method=VALUE"),
    (["~protocol.rounds"], "write protocol.rounds=VALUE"),
    (["runs_dir=${nowhere}"], "nowhere"),
    (["seed=???"], "seed"),
    (["partition=dir0"], "partition.alpha must be positive"),
    (["sweep.name=../../evil"], "contains a folder; give a name alone, and the folder as sweep.folder=FOLDER"),
    (["sweep.name=.hidden"], "contains a folder"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), tiered(BAD, quick=BAD[::10]), ids=[" ".join(arguments) for arguments, _ in BAD]
)
def test_bad_input_has_a_one_line_message(toy: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of many classes; the message is what counts
        resolve(compose.compose(arguments))
    line = one_line(caught.value)
    assert line is not None
    assert message in line
    assert "\n" not in line
    assert len(line) < 300
    assert lacks(line, arguments) == []


@pytest.mark.parametrize(
    "arguments",
    sampled(
        [
            ["method=fedavgg"],
            ["-m", "method=fedavg,fedavgg"],
            ["protocol.rounds=0"],
            ["method=[local,fedavg]"],
            ["-m", "method=[local,fedavg]", "seed=0,1"],
            ["-m", "hydra.sweeper._target_=os.system", "seed=0,1"],
            ["-m", "hydra.sweeper._target_=hydra_plugins.fedbench_sweepers.None", "seed=0,1"],
            ["-m", "hydra.launcher._target_=word", "seed=0,1"],
        ],
        every=4,
    ),
)
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_interruption_says_how_to_resume(
    toy: Path,
    executed: FakeRunner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    executed.fail(KeyboardInterrupt(), 0)
    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted\nresume with: python -m fedbench\n"


def test_unknown_names_in_a_registry() -> None:
    with pytest.raises(
        UnknownName, match=r"nearest: digits; a new one takes a line in fedbench/data/datasets/__init__\.py, or"
    ):
        groups.registry("dataset").get("digitz")


UNREADABLE = {
    "deep": (b"name: fedavg\nmu: " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
    "loop": (b"name: fedavg\nmu: &a [*a]", "nested too deeply|refers to itself"),
    "latin": ("name: fedavg # é".encode("latin1"), "not UTF-8"),
    "broken": (b"name: [fedavg\n", "while parsing"),
}


@pytest.mark.parametrize("name", tiered(UNREADABLE, quick=["latin"]))
def test_a_config_file_that_cannot_be_read_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, reason = UNREADABLE[name]
    file = tmp_path / "method" / f"{name}.yaml"
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name}\\.yaml.*({reason})"):
        groups.load_yaml(file)
    assert main(["--config-dir", str(tmp_path), f"method={name}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert re.search(reason, error)
    assert error.count("\n") == 1
    if name == "broken":
        assert f'"{file}", line 1' in error


def test_aliases_are_read(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: &a {b: 1}\nc: *a\nd: &d 2\ne: [*d, *d]\n")
    assert groups.load_yaml(file) == {"a": {"b": 1}, "c": {"b": 1}, "d": 2, "e": [2, 2]}


@pytest.mark.slow
def test_a_value_nested_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"seed={'[' * 1500}1{']' * 1500}"]) == 2
    assert capsys.readouterr().err == "error: a value is nested too deeply to be read\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(28, "No space left on device"),
            "No space left on device: make room; the same command resumes",
        ),
        (np.exceptions.AxisError("defect"), None),
        (RecursionError("defect"), None),
        (
            MemoryError("Unable to allocate 745. GiB"),
            "not enough memory: Unable to allocate 745. GiB; choose smaller sizes",
        ),
        (MemoryError(), "not enough memory: choose smaller sizes"),
    ],
)
def test_what_the_machine_lacks_is_one_line(error: Exception, line: str | None) -> None:
    code, text = explained(error)
    assert (code, text) == (2, f"error: {line}") if line else (code == 1 and "defect" in text)


def test_what_torch_cannot_have_of_a_cpu_is_one_line() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**13)
    assert type(caught.value) is RuntimeError, "torch has no class for it"
    code, text = explained(caught.value)
    assert code == 2
    assert text.startswith("error: not enough memory: can't allocate memory: you tried to allocate 4")
    assert text.endswith("; choose smaller sizes")


@pytest.mark.slow
def test_more_samples_than_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset=synthetic", "dataset.train=100000000000", f"runs_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("error: not enough memory: ")


@pytest.mark.parametrize("seeds", ["0", "-1", "abc", "[]", "[0,-1]", "[a]", "1.5", "true", "[", "1:30", "010"])
def test_seeds_that_are_none(seeds: str) -> None:
    with pytest.raises(ConfigError, match=r"seeds=.*at least 1"):
        select(["table=fedcollab_t1", f"seeds={seeds}"])


def test_hours_of_a_clock_are_no_number_of_hours() -> None:
    """YAML takes 1:30 for 90."""
    with pytest.raises(ConfigError, match=r"hours.*could not be converted to Float; give a number"):
        select(["hours=1:30"], KEYS)
    assert select(["hours=1.5", "jobs=2", "retry=true"], KEYS)[0] == Selection(hours=1.5, jobs=2, retry=True)


def test_a_key_without_a_value_is_refused() -> None:
    """Else `substitute=` would mean the table's own data, and `rows=` a row without a name."""
    for key in ("substitute", "rows", "seeds"):
        with pytest.raises(ConfigError, match=f"^'{key}=' has no value; give one or leave it out$"):
            select(["table=fedcollab_t1", f"{key}="])


def test_seeds_that_are_some() -> None:
    for given, meant in (("3", (0, 1, 2)), ("[3,0,0]", (0, 3)), ("[7]", (7,))):
        assert select(["table=fedcollab_t1", f"seeds={given}"])[0].seeds == meant


def test_an_npz_that_would_run_code_is_refused_without_advice_to_let_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", train_0=np.array([{}], dtype=object))
    (tmp_path / "junk.npz").write_bytes(b"PK\x03\x04junk")
    for name in ("objects", "junk"):
        with pytest.raises(FedbenchError) as caught:
            read_arrays(tmp_path / f"{name}.npz")
        assert "pickle" not in str(caught.value)
        assert f"{name}.npz is not a .npz of index arrays, or is damaged" in str(caught.value)


def test_damaged_rounds_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "result.json").write_text("{}")
    for text in (
        "",
        "round\n",
        "round,seconds_total\n1,2\n",
        "round,seconds_total,bytes_up,bytes_down\n1,x,2,3\n",
    ):
        (tmp_path / "rounds.csv").write_text(text)
        assert program.main(["tta", str(tmp_path), "--reference", "40"]) == 2
        assert "rounds.csv is damaged" in capsys.readouterr().err


def test_a_working_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main([]) == 2
    assert capsys.readouterr().err == "error: the working directory is gone; change to another one\n"


@pytest.mark.slow
def test_a_working_directory_that_is_deleted_during_a_run(
    toy: Path,
    executed: FakeRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever fails then, also where the system names no file."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)

    def deleted(run: RunConfig) -> None:
        gone.rmdir()
        Path("runs").resolve()

    executed.before = deleted
    assert main([]) == 2
    assert capsys.readouterr().err == "error: the working directory is gone; change to another one\n"


@pytest.mark.slow
@pytest.mark.parametrize("value", ["${seed}", "${nosuch:1}"])
def test_an_override_that_stands_for_nothing(value: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["method=local", f"seed={value}"]) == 2
    assert capfd.readouterr().err.count("\n") == 1
