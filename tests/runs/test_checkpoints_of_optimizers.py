"""Every optimiser x schedule x state x number of clients: interrupted after any round, a run ends as if it had not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.runs import execution
from tests.helpers.runs import config, interrupt_after, rows, same_models
from tests.helpers.tiers import tiered

SCHEDULE = "protocol.optimizer.schedule"
OPTIMIZERS = {
    "sgd": ["protocol.optimizer.momentum=0"],
    "momentum": ["protocol.optimizer.momentum=0.9"],
    "adam": ["protocol.optimizer.name=adam"],
    "cosine": ["protocol.optimizer.momentum=0.9", f"{SCHEDULE}.name=cosine", f"{SCHEDULE}.warmup=1"],
    "adamw": [
        "protocol.optimizer.name=adamw",
        "protocol.optimizer.weight_decay=0.1",
        f"{SCHEDULE}.name=cosine",
        f"{SCHEDULE}.by=step",
    ],
}
CASES = [(name, state, n) for name in OPTIMIZERS for state in ("fresh", "kept") for n in (1, 2, 10)]


@pytest.mark.parametrize(
    ("optimizer", "state", "clients"), tiered(CASES, [case for case in CASES if case[1:] == ("kept", 2)][::3])
)
def test_a_run_goes_on_after_every_round(
    optimizer: str, state: str, clients: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [*OPTIMIZERS[optimizer], f"protocol.optimizer.state={state}", f"partition.num_clients={clients}"]
    chosen += ["method=local", "protocol.rounds=3", "checkpoint.rounds=1", "protocol.optimizer.lr=0.01"]
    chosen += ["dataset.limit=80", "save_models=true", "protocol.local.batch_size=32"]
    for done in (1, 2):
        with monkeypatch.context() as patch:
            interrupt_after(patch, done)
            with pytest.raises(KeyboardInterrupt):
                execution.execute(config(tmp_path / "parts", *chosen))
    parts = execution.execute(config(tmp_path / "parts", *chosen))
    whole = execution.execute(config(tmp_path / "whole", *chosen))
    assert rows(parts.folder) == rows(whole.folder)
    assert same_models(parts.folder, whole.folder)
