"""A machine that several people use: who may read a folder may read what is made there, whatever the umask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedbench.core import cache, locks
from fedbench.runs.execution import execute
from tests.helpers.runs import FAST, config

PERMISSIONS = [(0o755, 0o755, 0o644), (0o2775, 0o2775, 0o664), (0o700, 0o700, 0o600), (0o1777, 0o755, 0o644)]


@pytest.fixture(params=[0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> tuple[set[int], set[int]]:
    """Permissions of the folders and of the files below `folder`."""
    below = [*folder.rglob("*")]
    found = ({path.stat().st_mode & 0o7777 for path in below if path.is_dir() == kind} for kind in (True, False))
    return next(found), next(found)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("given", "folders", "contents"), PERMISSIONS)
def test_permissions_are_the_folder_s(
    given: int, folders: int, contents: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root := tmp_path / "root").mkdir()
    root.chmod(given)
    monkeypatch.setenv("FEDBENCH_CACHE", str(root / "cache"))
    cache.cached_arrays("toy", lambda: {"x": np.zeros(3)})
    with locks.held(root / "held"):
        assert (root / "held" / ".lock").stat().st_mode & 0o777 == contents
    assert modes(root) == ({folders}, {contents})


@pytest.mark.slow
@pytest.mark.usefixtures("umask")
def test_a_run_can_be_read_and_gone_on_with_by_the_group(tmp_path: Path) -> None:
    (runs := tmp_path / "runs").mkdir()
    runs.chmod(0o2770)
    execute(config(runs, "method=fedavg", "protocol.rounds=1", "checkpoint.rounds=1", "save_models=true"))
    assert modes(runs) == ({0o2770}, {0o660})


def killed_while_writing(root: Path) -> subprocess.Popen[str]:
    """A process that stops in the middle of writing an entry of the cache."""
    code = (
        "import os, sys, time, numpy as np\nfrom fedbench.core import cache\n"
        "def stuck(*_): print('here', flush=True); time.sleep(600)\n"
        "np.save = stuck\ncache.cached_arrays('toy', lambda: {'x': np.zeros(3)})\n"
    )
    environment = {**os.environ, "FEDBENCH_CACHE": str(root)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def test_what_a_killed_first_read_left_is_removed_by_the_next_and_what_lives_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))
    with killed_while_writing(tmp_path) as process:
        (left,) = (tmp_path / "prepared").iterdir()
        try:
            cache.cached_arrays("other", lambda: {"x": np.ones(3)})
            assert left.is_dir()
        finally:
            process.send_signal(signal.SIGKILL)
    cache.cached_arrays("other", lambda: pytest.fail("it is there"))
    assert [path.name for path in (tmp_path / "prepared").iterdir()] == ["other"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "POSIX"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}]
)
def test_a_run_ends_in_any_locale(locale: dict[str, str], tmp_path: Path) -> None:
    """A sweep too, whose table and figure name it, below a folder with an umlaut."""
    chosen = [*FAST, "method=local", "protocol.rounds=1", "hardware=cpu", "sweep.name='würze'"]
    (folder := tmp_path / "jürgen 中").mkdir()
    command = [sys.executable, "-m", "fedbench", "-m", "seed=0,1", *chosen, f"runs_dir='{folder}/runs'"]
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run(command, env={**os.environ, **locale, **root}, cwd=folder, check=False).returncode == 0
    assert len([*tmp_path.rglob("result.json")]) == 2
    kept = folder / "results" / "sweeps" / "w_rze"
    assert "würze" in (kept / "figure.svg").read_text(encoding="utf-8")
    assert f"{folder}/runs" in (kept / "runs.csv").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_name_of_no_encoding_is_refused() -> None:
    command = [sys.executable, "-m", "fedbench", "method=local", b"dataset.path='j\xfcrgen.npz'"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    refusal = "is not UTF-8; rename the file or folder"
    assert done.stderr == f"error: dataset.path='j\\udcfcrgen.npz' {refusal}\n"


WITHOUT_POSIX = """
import multiprocessing, os, pathlib, signal, sys
import cvxpy, filelock, hydra, matplotlib.pyplot, pandas, PIL, scipy, sklearn, torch  # which may use all that there is

signal.SIGBREAK = signal.SIGUSR2
for module, names in (
    (signal, "SIGHUP SIGPIPE SIGALRM SIGKILL SIGUSR1 SIGUSR2 SIGCHLD SIGQUIT pthread_sigmask setitimer alarm"),
    (os, "sysconf sched_getaffinity getuid geteuid fork killpg nice getloadavg uname fchmod register_at_fork"),
):
    for name in filter(lambda name: hasattr(module, name), names.split()):
        delattr(module, name)
sys.modules.update(dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios", "tty", "posix")))
multiprocessing.get_all_start_methods = lambda: ["spawn"]
sys.addaudithook(lambda event, given: event == "open" and str(given[0]).startswith("/proc/mem") and missing(given[0]))

def missing(file):
    raise FileNotFoundError(file)

import fedbench
from fedbench.core.signals import SIGNALS

assert signal.SIGBREAK in SIGNALS
run = fedbench.run("method=fedavg", "protocol.rounds=1", "protocol.local.epochs=1", "partition.num_clients=3")
assert run.row["acc"] in fedbench.load()["acc"].tolist()
"""


@pytest.mark.slow
def test_a_run_needs_nothing_that_windows_lacks(tmp_path: Path) -> None:
    environment = {"FEDBENCH_RUNS": str(tmp_path / "runs"), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WITHOUT_POSIX]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
