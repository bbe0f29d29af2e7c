"""Whatever ends a table's processes or its disk: the same command ends with the same rows, and none is lost.

The short form tries each fault once, the long one (--hypothesis-profile=many) at any moment. Both are slow: each trial
is a table made in processes of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fedbench.papers import render, store
from tests.helpers.examples import tried

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TABLE = (
    *("table=fedcollab_t1", "scale=smoke", "substitute=digits", "columns=1", "rows=Local,FedAvg", "hardware=cpu"),
    *("protocol.rounds=30", "checkpoint.rounds=1", "results=results", "runs_dir=runs"),
)
LONG = 300.0  # seconds that a table may take on a busy machine


def begun(folder: Path, *more: str, command: Sequence[str] = ("reproduce", *TABLE)) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedbench", *command, *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **streams)  # type: ignore[call-overload, no-any-return]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=LONG)
    assert "Traceback" not in said, said
    return process.returncode, said


def cells(folder: Path) -> bytes:
    (found,) = store.table_folders(folder / "results").values()
    return render.draw_csv(store.read_table(found)).encode()


def workers(folder: Path) -> list[int]:
    """Processes that are at a task, as their logs say."""
    texts = [log.read_text() for log in folder.glob("runs/.sweeps/*/*.log")]
    return [int(text.split()[1]) for text in texts if text.startswith("process ")]


def started(folder: Path, process: subprocess.Popen[str], moment: float) -> None:
    """Wait until a run is under way, and `moment` seconds more."""
    until = time.monotonic() + LONG
    while not [*folder.glob("runs/digits/*/*/*/checkpoint.safetensors")] and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(moment)


@contextlib.contextmanager
def disk(folder: Path, size: str) -> Iterator[None]:
    """A small disk at `folder`; skips where none can be had."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("no disk of a chosen size can be had here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remounted(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


def tried_with(fault: str, moment: float, folder: Path, whole: bytes, launcher: str = "joblib") -> None:
    """Have `fault` happen at `moment`; then the same command must end with the rows of `whole`."""
    pool = (f"launcher={launcher}", *(["launcher.n_jobs=2"] if launcher == "joblib" else []), "seeds=2")
    place = folder / "disk"
    with disk(place, {"full": "200k"}.get(fault, "50m")):
        process = begun(place, *pool)
        if fault == "two commands":
            other = begun(place, *pool)
            assert {ended(process)[0], ended(other)[0]} <= {0, 3}
        elif fault == "full":
            code, said = ended(process)
            assert code != 0, said
            assert "No space left on device" in said
            remounted(place, "size=50m")
        else:
            started(place, process, moment)
            if fault == "worker":
                for number in workers(place)[:1]:
                    with contextlib.suppress(ProcessLookupError):  # its task has just ended
                        os.kill(number, signal.SIGKILL)
                code, said = ended(process)
                assert code == 0, said
            elif fault == "driver":
                process.kill()
                process.communicate(timeout=LONG)
            elif fault == "read-only":
                with contextlib.suppress(subprocess.CalledProcessError):  # busy: written to at this moment
                    remounted(place, "ro")
                process.communicate(timeout=LONG)
                remounted(place, "rw")
        for _ in range(20):
            code, said = ended(begun(place, *pool, "retry=true"))
            if code == 0 or "another process is running it" not in said:
                break
            time.sleep(1)  # an orphan of a driver that was killed completes its run
        assert code == 0, said
        assert cells(place) == whole


FAULTS = ("worker", "driver", "full", "read-only", "two commands")


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    assert ended(begun(folder, "jobs=1", "seeds=2"))[0] == 0
    return cells(folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault(fault: str, tmp_path: Path, two_seeds: bytes) -> None:
    tried_with(fault, 0.2, tmp_path, two_seeds)


@pytest.mark.parametrize(("launcher", "package"), [("ray", "ray"), ("submitit_local", "submitit")])
def test_a_worker_of_each_other_launcher(launcher: str, package: str, tmp_path: Path, two_seeds: bytes) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    tried_with("worker", 0.2, tmp_path, two_seeds, launcher)


def test_two_commands_on_one_leaderboard(tmp_path: Path) -> None:
    """Both end with the rows that one alone makes."""

    def rows(folder: Path) -> list[dict[str, str]]:
        kept = store.files_of(folder / "results/leaderboard/mini", "board").csv("rows.csv")
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in kept]

    board = ("leaderboard", "board=mini", "rows=fedavg", "results=results", "runs_dir=runs", "jobs=1")
    for folder, count in ((tmp_path / "alone", 1), (tmp_path / "both", 2)):
        folder.mkdir()
        together = [begun(folder, command=board) for _ in range(count)]
        assert {ended(each)[0] for each in together} <= {0, 3}
        code, said = ended(begun(folder, command=board))
        assert code == 0, said
    assert rows(tmp_path / "alone") == rows(tmp_path / "both") != []


@given(fault=st.sampled_from(FAULTS), moment=st.floats(0, 5))
@tried(0.25)
def test_any_fault(fault: str, moment: float, tmp_path_factory: pytest.TempPathFactory, two_seeds: bytes) -> None:
    event(fault)  # --hypothesis-show-statistics tells how often each was tried
    tried_with(fault, moment, tmp_path_factory.mktemp("any"), two_seeds)
