"""`fedbench COMMAND`: the commands under one name, and what a shell completes."""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.cli import program

ROOT = Path(__file__).parents[2]


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    with contextlib.suppress(SystemExit):  # Hydra's own way to end
        program.main(["-sc", "query=bash"])
    return capsys.readouterr().out.split()


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in program.COMMANDS:
        with contextlib.suppress(SystemExit):  # argparse
            program.main([name, "--help"])
        assert f"python -m fedbench {name} " in capsys.readouterr().out


@pytest.mark.slow
def test_anything_else_is_a_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert program.main(["metod=local"]) == 2
    assert "nearest: method" in capsys.readouterr().err
    assert program.main(["reproduse", "table=fedcollab_t1"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown command 'reproduse'; nearest: reproduce")
    monkeypatch.setattr("sys.argv", ["fedbench", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("fedbench", run_name="__main__")


@pytest.mark.parametrize(
    "words",
    [
        ["collect", "x", "--margin", "two"],
        ["collect", "x", "--ou", "x.csv"],
        ["tta", "x", "--reference", "abc"],
        ["list"],
        ["prepare", "--chek"],
        ["report", "a", "b"],
    ],
)
def test_what_an_option_is_not_is_told_in_a_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.endswith(f"; see python -m fedbench {words[0]} --help\n")
    assert said.count("\n") == 1


def test_an_option_that_a_board_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Not the board, which is given."""
    assert program.main(["leaderboard", "board=mini", "--check"]) == 2
    assert capsys.readouterr().err.startswith("error: '--check' is no KEY=VALUE; see ")


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["reproduce", "table=pfedsim_t3", "column=1"], "'column'; nearest: columns"),
        (["figure", "fedsac_f7", "scal=quick"], "'scal'; nearest: scale"),
        (["evidence", "pfedsim_t3", "hour=2"], "'hour'; nearest: hours"),
        (["leaderboard", "board=mini", "row=fedavg"], "'row'; nearest: rows"),
    ],
)
def test_a_mistyped_key_is_compared_with_the_command_s_own(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(words) == 2
    assert capsys.readouterr().err == f"error: unknown key {near}\n"


@pytest.mark.slow
def test_help_shows_what_a_run_is_composed_of(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):  # Hydra's own way to end
        program.main(["--help"])
    out = capsys.readouterr().out
    assert f"  {', '.join(program.COMMANDS)}\n" in out
    groups = {line.partition(":")[0] for line in out.splitlines() if ": " in line}
    assert {"method", "dataset", "experiment"} <= groups
    assert not {"table", "scale", "figure"} & groups


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "among", "not_among"),
    [
        ("fedbench ", "reproduce", "table=fedcollab_t1"),
        ("fedbench re", "report", "list"),
        ("fedbench met", "method=", "dataset="),
        ("fedbench method=fedav", "method=fedavg", "method=local"),
        ("fedbench seed=1 method=fedav", "method=fedavg", "report"),
        ("fedbench list m", "models", "method="),
        ("fedbench reproduce ", "table=fedcollab_t1", "method="),
        ("fedbench prepare ", "digits", "fedavg"),
    ],
)
def test_completion(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    among: str,
    not_among: str,
) -> None:
    offered = completed(monkeypatch, capsys, line)
    assert among in offered
    assert not_among not in offered


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_after_the_line_of_the_docs(tmp_path: Path) -> None:
    line = 'eval "$(fedbench -sc install=bash)"'
    assert line in (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    program = tmp_path / "fedbench"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedbench "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    typed = "fedbench reproduce table=fedsac_t1"
    keys = f"COMP_LINE='{typed}' COMP_POINT={len(typed)} COMP_CWORD=2; hydra_bash_completion"
    script = f'{line}\n{keys}\necho "${{COMPREPLY[@]}}"\ncomplete -p fedbench'
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    offered, installed = done.stdout.splitlines()
    assert offered.split() == ["table=fedsac_t1", "table=fedsac_t1_open"]
    assert installed.endswith("-F hydra_bash_completion fedbench")
