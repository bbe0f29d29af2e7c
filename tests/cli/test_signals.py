"""Ctrl-C and SIGTERM at any moment; two sweeps at once; a sweep some of whose runs fail."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joblib.externals.loky import get_reusable_executor

import fedbench
from fedbench.cli import program
from fedbench.cli.program import main
from fedbench.core import locks
from fedbench.core.errors import DataMissing, FolderInUse
from fedbench.core.signals import Stopped, asked, handled, held
from fedbench.engine import checkpoint
from fedbench.engine.simulation import Simulation
from fedbench.runs import execution
from fedbench.runs.folder import CHECKPOINT, RESULT, files_of
from tests.helpers.runs import deterministic
from tests.helpers.tiers import sampled

RUN = [
    "method=local",
    "dataset.limit=60",
    "partition=homo",
    "partition.num_clients=3",
    "model=mlp",
    "progress=none",
    "protocol=fedcollab_label_shift",
]


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """`signalled(number, times)`: have that signal sent in the middle of round 2, that often."""

    def arrange(number: int, times: int) -> None:
        record = Simulation._record

        def recording(self: Simulation, state: Any, *rest: Any) -> None:
            if state.round == 2:
                for _ in range(times):
                    os.kill(os.getpid(), number)
            record(self, state, *rest)

        monkeypatch.setattr(Simulation, "_record", recording)

    return arrange


@pytest.mark.parametrize(
    ("number", "code"), sampled([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], every=3)
)
def test_a_signal_ends_with_a_checkpoint_and_the_command_that_goes_on(
    number: int,
    code: int,
    signalled: Callable[[int, int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    command = [*RUN, "protocol.rounds=4", f"runs_dir={tmp_path}/some runs"]
    with monkeypatch.context():
        signalled(number, 1)
        assert main(command) == code
        monkeypatch.undo()
    (checkpoint,) = tmp_path.rglob("checkpoint.safetensors")
    told = capfd.readouterr().err
    assert "stopping after this round; once more stops at once\n" in told
    assert f"interrupted after round 2 of 4; checkpoint: {checkpoint}\n" in told
    repeated = " ".join([*RUN, "protocol.rounds=4", f"'runs_dir={tmp_path}/some runs'"])
    assert told.endswith(f"resume with: python -m fedbench {repeated}\n")
    assert main(command) == 0
    assert json.loads(checkpoint.with_name("result.json").read_text())["rounds"] == 4
    main([*RUN, "protocol.rounds=4", f"runs_dir={tmp_path}/whole"])
    whole, parts = (next((tmp_path / name).rglob("tallies.npz")).read_bytes() for name in ("whole", "some runs"))
    assert whole == parts


@pytest.mark.slow
def test_a_closed_terminal_leaves_a_checkpoint(tmp_path: Path) -> None:
    """What is printed from then on, as each round is here, goes to nobody."""
    ours, theirs = pty.openpty()
    chosen = [*RUN[:-2], RUN[-1], "progress=bar", "protocol.rounds=100000", "checkpoint.rounds=1"]
    begin = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"  # it is the terminal of this process
    begin += "; from fedbench.cli.program import main; sys.exit(main())"
    command = [sys.executable, "-c", begin, *chosen, f"runs_dir={tmp_path}"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    while not [*tmp_path.rglob(CHECKPOINT)]:
        os.read(ours, 1 << 16)
    os.close(ours)
    assert process.wait(60) == 129
    (saved,) = tmp_path.rglob(CHECKPOINT)
    assert checkpoint.read_checkpoint(saved)[1]["round"] >= 1
    assert not [*saved.parent.glob(".lock")]


@pytest.mark.slow
def test_a_second_signal_stops_at_once(
    signalled: Callable[[int, int], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    signalled(signal.SIGINT, 2)
    assert main([*RUN, "protocol.rounds=4", f"runs_dir={tmp_path}"]) == 130
    assert not list(tmp_path.rglob("checkpoint.safetensors"))
    assert "\ninterrupted\nresume with: python -m fedbench" in capfd.readouterr().err


def test_a_signal_outside_of_rounds_stops_at_once_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as caught, handled():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_whose_parent_was_killed_stops(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, time\n"
        "from fedbench.core.signals import asked, working_for\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "if os.fork():\n    time.sleep(60)\n"
        "for task in range(2):\n"
        "    with working_for(folder):\n"
        "        print(asked(), flush=True)\n"
        "        until = time.monotonic() + 20 * (not task)\n"
        "        while not asked() and time.monotonic() < until: time.sleep(0.01)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == "None\n"
        process.kill()
        assert said.read() == f"{signal.SIGTERM!s}\n", "nor is another task begun"
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_whenever_a_signal_is_seen_the_checkpoint_that_is_named_is_there(
    looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = itertools.chain([None] * looks, itertools.repeat(signal.SIGTERM))
    monkeypatch.setattr(execution, "asked", lambda: next(seen))
    with pytest.raises(Stopped) as caught:
        fedbench.run(*RUN, "protocol.rounds=3", runs_dir=str(tmp_path))
    assert Path(caught.value.where.partition("checkpoint: ")[2]).is_file()


def test_a_handler_of_somebody_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with held():
            os.kill(os.getpid(), signal.SIGTERM)
            assert seen == [signal.SIGTERM]
            assert asked() is None
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_sweep_waits_for_what_another_process_makes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    execute, refusals = execution.execute, iter(range(3))

    def in_use_at_first(run: Any, *rest: Any, **more: Any) -> Any:
        if run.seed == 1 and next(refusals, None) is not None:
            raise FolderInUse("run folder x is in use by process 7")
        return execute(run, *rest, **more)

    monkeypatch.setattr(execution, "execute", in_use_at_first)
    monkeypatch.setattr(locks, "PATIENCE", 0.0)
    command = [*RUN, "protocol.rounds=1", f"runs_dir={tmp_path}"]
    assert main(["-m", *command, "seed=0,1"]) == 0
    assert caplog.messages.count("waiting for another process: run folder x is in use by process 7") == 1
    assert " 2 │" in capsys.readouterr().out, "both seeds"
    refusals = iter(range(3))
    assert main([*command, "seed=1"]) == 0, "a single run waits too"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with mu=1 fail."""
    execute = execution.execute

    def but_one(run: Any, *rest: Any, **more: Any) -> Any:
        if getattr(run.method, "mu", 0) == 1:
            raise DataMissing("gone")
        return execute(run, *rest)

    monkeypatch.setattr(execution, "execute", but_one)


@pytest.mark.slow
def test_a_sweep_counts_what_failed_and_keeps_what_was_swept(
    failing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [*RUN[1:], "protocol.rounds=1", "method=fedprox", "method.mu=0.5,1", "sweep.name=mine"]
    assert main(["-m", *command]) == 2
    said = capsys.readouterr()
    assert "fedprox mu=0.5" in said.out
    assert "1 of 2 runs failed" in said.out
    assert "method.mu=1 sweep.name=mine: gone\n" in said.err
    (folder,) = (tmp_path / "results" / "sweeps").iterdir()
    assert "mu" not in folder.name, "what was swept is no part of the name"
    assert (folder / "table.csv").read_text().startswith("method.mu,")


# Real processes that are sent a signal: each run under way is saved, and the same command ends with the same rows.

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, EACH = 120, 5
STOPPED_RUN = [
    *["dataset.limit=60", "partition=homo", "partition.num_clients=3", "model=mlp", "hardware=cpu"],
    *[f"protocol.rounds={ROUNDS}", "protocol.eval_every=10", f"checkpoint.rounds={EACH}"],
]
SWEEP = ["fedbench", "-m", "method=local", "seed=0,1", "protocol=quick", "dataset=digits"]
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hardware.engine=looped", *STOPPED_RUN]
TABLE = [
    *["fedbench", "reproduce", "table=fedcollab_t1", "scale=paper", "substitute=digits", "rows=Local"],
    *["columns=1", "seeds=2", "jobs=2", *STOPPED_RUN],
]


def process(command: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    """What the runs below `folder` found, but for times."""
    found = [deterministic(files_of(file.parent).json(RESULT)) for file in sorted(folder.rglob(RESULT))]
    return [{**row, "commit": ""} for row in found]  # of the source, which may change while a slow test runs


@functools.cache
def straight(command: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """The rows of `command` if nobody interrupts it; run in `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sweep = command[0] == SWEEP[0]
        assert program.main([*command[1:], *(STOPPED_RUN if sweep else [])]) == 0
    return rows(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "number", "group"),
    [
        pytest.param(SWEEP, signal.SIGTERM, False, id="sweep, SIGTERM"),
        pytest.param(SWEEP, signal.SIGINT, True, id="sweep, Ctrl-C"),
        pytest.param(TABLE, signal.SIGTERM, False, id="table, SIGTERM"),
        pytest.param(TABLE, signal.SIGINT, True, id="table, Ctrl-C"),
    ],
)
def test_every_run_under_way_is_saved_and_goes_on(
    command: list[str],
    number: int,
    group: bool,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = [
        f"runs_dir={tmp_path / 'elsewhere'}",  # not where a process looks by itself
        *([] if command is SWEEP else [f"results={tmp_path / 'results'}"]),
    ]
    whole = [*command, *(JOBLIB if command is SWEEP else []), *places]
    stopped = process(whole, tmp_path)
    while len(list(tmp_path.rglob(CHECKPOINT))) < 2:
        assert stopped.poll() is None, stopped.communicate()[0]
        time.sleep(0.02)
    (os.killpg if group else os.kill)(stopped.pid, number)  # a terminal sends Ctrl-C to the whole group
    told = stopped.communicate(timeout=100)[0]
    assert stopped.returncode == 128 + number, told
    said = re.findall(rf"interrupted after round (\d+) of {ROUNDS}; checkpoint: (.*)", told)
    assert len({path for _, path in said}) == len(said) == 2, told
    for done, path in said:
        assert EACH <= int(done) < ROUNDS
        assert checkpoint.read_checkpoint(path)[1]["round"] == int(done), "the last completed round"
    assert f"resume with: python -m {shlex.join(whole)}\n" in told
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the processes
    get_reusable_executor().shutdown()  # those of a test before this one would write to its files
    assert program.main(whole[1:]) == 0
    assert len(rows(tmp_path)) == 2
    assert rows(tmp_path) == straight(tuple(command), tmp_path_factory.mktemp("straight"))
    if command is SWEEP:
        get_reusable_executor().shutdown()  # the next test's output is not for the files of this one
        resumed = capfd.readouterr().out
        assert all(f"resumed after round {done}" in resumed for done, _ in said)


@pytest.mark.slow
def test_a_sweep_asked_twice_stops_at_once(tmp_path: Path) -> None:
    stopped = process([*SWEEP, *JOBLIB], tmp_path)
    while stopped.poll() is None and not list(tmp_path.rglob(CHECKPOINT)):
        time.sleep(0.02)
    for _ in range(2):
        stopped.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    assert stopped.communicate(timeout=60)
    assert stopped.returncode == 143
