"""The command before anything runs: help, version, speed."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench import __version__
from fedbench.cli.program import main

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_help(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "python -m fedbench -m method=local,fedavg seed=0,1,2" in text
    assert "method: fedavg, fedcollab, fedprox, fedprox_code\n" in text
    assert "method/base" not in text.split("Choices")[1]
    assert "$" not in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedbench {__version__}\n"


def _python(*arguments: str) -> tuple[float, str]:
    """(processor seconds, output) of a Python process: unlike the clock's, they do not depend on the load."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    return used() - before, done.stdout


HEAVY = ("torch", "pandas", "sklearn", "scipy", "matplotlib", "wandb")


def test_import_is_quick_and_light() -> None:
    names = (*HEAVY, "hydra", "numpy", "omegaconf")
    code = f"import sys, fedbench; print(*[m for m in {names!r} if m in sys.modules])"
    seconds, output = _python("-c", code)
    assert output.split() == []
    assert seconds < 0.5


@pytest.mark.slow
def test_help_is_quick_and_light_in_any_folder(elsewhere: Path) -> None:
    code = (
        "import sys; from fedbench.cli.program import main\n"
        "try: main(['--help'])\n"
        f"except SystemExit: print('HEAVY', *[m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert _python("-c", code)[1].splitlines()[-1] == "HEAVY"
    seconds, output = _python("-m", "fedbench", "--help")
    assert "python -m fedbench -m" in output
    assert seconds < _python("-c", "import torch")[0]  # on the same machine, slow or not
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
def test_a_run_of_fedavg_loads_no_more_than_it_takes(elsewhere: Path) -> None:
    """Other methods, models and commands are loaded by whom they serve."""
    chosen = ["method=fedavg", "dataset=digits", "dataset.limit=300", "model=mlp", "protocol.rounds=1"]
    code = (
        "import sys; from fedbench.cli.program import main\n"
        f"main({chosen!r})\n"
        "print('LOADED', *[m for m in sys.modules if m.partition('.')[0] == 'fedbench'])"
    )
    loaded = _python("-c", code)[1].splitlines()[-1].split()[1:]
    assert "fedbench.methods.fedavg" in loaded
    assert len(loaded) <= 84, sorted(loaded)
