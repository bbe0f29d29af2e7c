"""The comparison with other frameworks, without them: the work file, the answers, equal work, failures told."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.config import compose
from fedbench.runs.config import resolve
from tests.scripts.rival_program import PROGRAM, SIZES


def rival(rivals: Any, monkeypatch: pytest.MonkeyPatch, program: Path, text: str) -> Any:
    """The one contestant: `text`, run by this interpreter."""
    program.write_text(text, encoding="utf-8")
    found = rivals.Rival("Fake", "fake", "1.2", program=str(program))
    monkeypatch.setattr(rivals.Rival, "python", property(lambda _: Path(sys.executable)))
    monkeypatch.setattr(rivals, "prepare", lambda _: None)
    monkeypatch.setattr(rivals, "contestants", lambda _: [(found, 1)])
    return found


def test_networks_reach_rivals_in_torch_s_own_layers(rivals: Any) -> None:
    """Their environments have no fedbench that a class of its could be loaded from."""
    workloads = importlib.import_module("benchmarks.workloads").WORKLOADS
    for name in rivals.COMPARED:
        run = resolve(compose.compose(list(workloads[name].overrides)))
        net = run.model.task(workloads[name].shape, 10).fresh()
        x = torch.randn(2, *workloads[name].shape)
        before = net(x)
        plain = sys.modules["benchmarks.rival_ours"].in_torch_s_layers(net)
        assert {type(module).__module__.split(".")[0] for module in plain.modules()} == {"torch"}
        assert torch.equal(plain(x), before)


def test_the_work_file_holds_the_engines_work(rivals: Any, tiny: Any, tmp_path: Path) -> None:
    """One round on it, whole clients as batches so that no order matters, ends in the engine's weights."""
    whole = ("protocol.local.batch_size=512", "protocol.local.epochs=1")
    setup = dataclasses.replace(tiny, overrides=(*tiny.overrides, *whole)).setup(torch.device("cpu"))
    rivals.export(setup, 3, tmp_path / "work.pt")
    work = sys.modules["benchmarks.rival_work"].load(tmp_path / "work.pt", "cpu")
    for client in range(work.clients):
        x, y = setup.federation.gather(setup.federation.indices("train", client))
        assert torch.equal(work.client(client)[1], y)
        torch.testing.assert_close(work.client(client)[0], x)
    ours = sys.modules["benchmarks.rival_ours"]
    simulation = ours.Simulation(setup, ours.LoopedTrainer(setup))
    state = simulation.begin()
    ids = setup.draw_cohort(ours.Clock(0, setup.protocol.rounds)).tolist()
    assert work.cohorts[0].tolist() == ids
    simulation.step(state)
    expected = {name: torch.zeros_like(leaf) for name, leaf in work.net.state_dict().items()}
    total = sum(SIZES[client] for client in ids)
    for client in ids:
        x, y = work.client(client)
        torch.nn.functional.cross_entropy(work.net(x), y).backward()
        for name, parameter in work.net.named_parameters():
            expected[name] += (parameter - work.lr * parameter.grad).detach() * len(y) / total
            parameter.grad = None
    for name, leaf in expected.items():
        torch.testing.assert_close(state.server[name], leaf, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_rival_that_does_the_same_is_compared(
    rivals: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival(rivals, monkeypatch, tmp_path / "fake.py", PROGRAM)
    row = rivals.compare("T", torch.device("cpu"), 4)
    (theirs,) = row["rivals"]
    assert (theirs["rival"], theirs["version"], theirs["against"]) == ("Fake", "1.2", "looped")
    assert theirs["ratio"] > 0
    assert row["client_steps"] > 0
    assert theirs["accuracy"] > 0.5


def test_a_rival_that_does_less_is_refused(rivals: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "contestants", lambda _: [(rivals.PFL, 1)])
    monkeypatch.setattr(rivals, "_rival", lambda *_: rivals.Answer([1.0, 1.0, 1.0], 7, 0.9))
    with pytest.raises(AssertionError, match=r"T: unequal work, client-steps .*'pfl x 1': 7"):
        rivals.compare("T", torch.device("cpu"), 2)


def test_a_rival_that_fails_is_told_and_the_others_count(
    rivals: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival(rivals, monkeypatch, tmp_path / "fake.py", "print('first'); raise SystemExit('no such thing')")
    row = rivals.compare("T", torch.device("cpu"), 4)
    (theirs,) = row["rivals"]
    assert theirs["missing"] == "Fake failed: no such thing"
    table = "\n".join(_table([row]))
    assert "| T | Fake 1.2 | 1 | - | - | - | - | - |" in table
    assert "- Fake was not measured: Fake failed: no such thing" in table


def _table(rows: list[dict[str, Any]]) -> list[str]:
    return list(importlib.import_module("benchmarks.render").rivals_table(rows))


@pytest.mark.parametrize(
    ("steps", "accuracy", "message"),
    [
        ((8, 8), (0.9, 0.93), None),
        ((8, 7), (0.9, 0.9), "unequal work"),
        ((8, 8), (0.9, 0.8), "unequal results"),
        ((8, 8), (0.1, 0.1), "unequal results"),  # neither learned: their agreement says nothing
    ],
)
def test_equal_work(
    rivals: Any, steps: tuple[int, int], accuracy: tuple[float, float], message: str | None
) -> None:
    answers = {
        who: rivals.Answer([1.0, 1.0], count, score)
        for who, count, score in zip("ab", steps, accuracy, strict=True)
    }
    if message is None:
        rivals.equal_work("T", answers)
    else:
        with pytest.raises(AssertionError, match=message):
            rivals.equal_work("T", answers)


def test_an_answer_is_read_back_or_refused(rivals: Any, tmp_path: Path) -> None:
    answer = rivals.Answer([2.0, 1.0, 1.5], 12, 0.75)
    answer.write(tmp_path / "a.json")
    assert rivals.Answer.read(tmp_path / "a.json") == answer
    for text in ('{"steps": 3}', "[]", json.dumps({"seconds": [1.0], "steps": 1, "accuracy": 0.5})):
        (tmp_path / "b.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"b\.json holds"):
            rivals.Answer.read(tmp_path / "b.json")


def test_ratio_compares_equal_numbers_of_processes(rivals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rival's fastest round but its warm-up, over the mean of the engine's before and after."""
    monkeypatch.setattr(rivals, "available_workers", lambda: 2)
    answer = rivals.Answer
    taken = [
        {"looped": answer([9.0, 4.0, 4.0], 30, 0.9), "workers": answer([9.0, 2.0, 2.0], 30, 0.9)},
        {"looped": answer([9.0, 6.0, 6.0], 30, 0.9), "workers": answer([9.0, 3.0, 3.0], 30, 0.9)},
    ]
    one, two = (rivals.PFL, 1), (rivals.FLOWER, 2)
    theirs = {one: answer([9.0, 10.0, 12.0], 30, 0.9), two: answer([99.0, 10.0, 10.0], 30, 0.9)}
    setup = type("S", (), {"protocol": type("P", (), {"optimizer": type("O", (), {"lr": 0.1})})})
    workload = rivals.Workload("T", "", (), (1,), (1, 8, 8))
    row = rivals.row(workload, setup, taken, theirs, 2)
    assert [(each["against"], each["ratio"]) for each in row["rivals"]] == [("looped", 2.0), ("workers", 4.0)]
    assert row["client_steps"] == 10
    table = "\n".join(_table([{**row, "load_before": 0.5}]))
    assert (
        "| T | pfl 0.6.0 | 1 | 10.00 (11.00) | looped 5.00 (5.00) | 2.00 | 0.900, ours 0.900 | 0.5 |" in table
    )


def test_an_environment_is_made_only_once(
    rivals: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip is asked for the rival and this process's torch; a failure is one line; what is there is taken."""
    envs = sys.modules["benchmarks.rival_envs"]
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))
    commands: list[list[str]] = []
    answers = iter([("", 0), ("ERROR: No matching distribution\n", 1)])

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append([str(part) for part in command])
        if "-c" in command:
            raise OSError("no interpreter there yet")
        words, code = next(answers)
        return subprocess.CompletedProcess(command, code, stdout="", stderr=words)

    monkeypatch.setattr(envs.subprocess, "run", fake)
    with pytest.raises(rivals.RivalError, match=r"flwr\[simulation\]==1.35.0 .*No matching distribution"):
        envs.prepare(rivals.FLOWER)
    assert str(tmp_path / "rivals" / "flwr") in commands[1]
    assert commands[2][-2:] == ["flwr[simulation]==1.35.0", f"torch=={torch.__version__.partition('+')[0]}"]
    held = f"1.35.0 {torch.__version__}"
    monkeypatch.setattr(
        envs.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, stdout=held)
    )
    envs.prepare(rivals.FLOWER)  # would ask pip, and find nothing left to answer
