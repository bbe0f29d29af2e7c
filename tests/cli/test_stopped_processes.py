"""Real processes that are sent a signal: each run under way is saved, and the same command ends with the same rows."""

from __future__ import annotations

import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedbench.cli import program
from fedbench.engine import checkpoint
from fedbench.engine.history import deterministic
from fedbench.runs.folder import CHECKPOINT, RESULT, files_of

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, EACH = 200, 5
RUN = [
    *["dataset.limit=60", "partition=homo", "partition.num_clients=3", "model=mlp", "hardware=cpu"],
    *[f"protocol.rounds={ROUNDS}", "protocol.eval_every=10", f"checkpoint.rounds={EACH}"],
]
SWEEP = ["fedbench", "-m", "method=local", "seed=0,1", "protocol=quick", "dataset=digits"]
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hardware.engine=looped", *RUN]
TABLE = [
    *["fedbench", "reproduce", "table=fedcollab_t1", "scale=paper", "substitute=digits", "rows=Local"],
    *["columns=1", "seeds=2", "jobs=1", "hardware.engine=stacked", *RUN],
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
        assert program.main([*command[1:], *(RUN if sweep else [])]) == 0
    return rows(folder)


@pytest.mark.parametrize(
    ("command", "number", "group"),
    [
        pytest.param(SWEEP, signal.SIGTERM, False, id="sweep, SIGTERM", marks=pytest.mark.slow),
        pytest.param(SWEEP, signal.SIGINT, True, id="sweep, Ctrl-C", marks=pytest.mark.slow),
        pytest.param(TABLE, signal.SIGINT, True, id="seeds together, Ctrl-C"),
        pytest.param(TABLE, signal.SIGTERM, False, id="seeds together, SIGTERM", marks=pytest.mark.slow),
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
        f"runs_dir={tmp_path / 'runs'}",
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
        assert checkpoint.load(path)[1]["round"] == int(done), "the last completed round"
    assert f"go on: python -m {shlex.join(whole)}\n" in told
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the processes
    assert program.main(whole[1:]) == 0
    assert len(rows(tmp_path)) == 2
    assert rows(tmp_path) == straight(tuple(command), tmp_path_factory.mktemp("straight"))
    if command is SWEEP:
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
