"""Whole runs on digits: the folder, the reference, engines, one client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

from fedbench.cli.program import main
from fedbench.config.schema import CheckpointConfig, LocalConfig, OptimizerConfig, TestConfig
from fedbench.core import locks
from fedbench.core.errors import CheckpointError, ConfigError, DataMissing, FedbenchError, FolderInUse, warn_once
from fedbench.data.datasets.synthetic import Synthetic
from fedbench.data.partition import Partition, make_partition
from fedbench.data.partitions.label import Homogeneous
from fedbench.engine.history import History, Labels, Record
from fedbench.metrics import Tally
from fedbench.runs import building, execution, fingerprint
from fedbench.runs import execution as run
from fedbench.runs.config import from_plain
from fedbench.runs.folder import CODE, RunFolder, folder_of, labels_of
from fedbench.runs.run import Reading, summarise
from tests.helpers.runs import FAST, config, count_rounds, interrupt_after, kill_and_rerun, rows, same_models, stamps
from tests.helpers.tiers import sampled

SGD = OptimizerConfig()


def told(
    caplog: pytest.LogCaptureFixture,
    sizes: Sequence[int],
    sets: str = "local",
    prepares: int = 0,
    optimizer: OptimizerConfig = SGD,
    seed: int = 0,
    every: int = 1,
) -> list[str]:
    """What is said before the two rounds of a run."""
    if not seed:
        warn_once.cache_clear()
    caplog.clear()
    none = torch.zeros(0, dtype=torch.int64)
    held = SimpleNamespace(sizes=torch.tensor(sizes), values=none)
    federation = SimpleNamespace(sets={"local": held, "val": held, "train": held}, global_test=none, y=none)
    test = TestConfig(sets=sets, val_fraction=0.1 if sets == "validation" else 0.0)
    method, protocol = (
        SimpleNamespace(prepare_round=prepares),
        SimpleNamespace(
            rounds=2, eval_every=every, test=test, score="received", optimizer=optimizer, local=LocalConfig()
        ),
    )
    labels = {"method": "late", "dataset": "digits", "partition": "dir0.1"}
    chosen: Any = SimpleNamespace(recorders=(), method=method, protocol=protocol, labels=labels, partition_seed=seed)
    population = SimpleNamespace(sizes=torch.tensor([10]))
    setup: Any = SimpleNamespace(federation=federation, protocol=protocol, population=population)
    run.check_rounds(chosen, setup)
    return [record.getMessage() for record in caplog.records]


def test_clients_without_a_test_sample_are_counted_aloud(caplog: pytest.LogCaptureFixture) -> None:
    """Acc, IPR and RSD are over the others; of each set, and of each split of a process."""
    said = "digits, dir0.1, seed {}: 2 of 4 clients have no {} sample; scores are over the others"
    assert told(caplog, [3, 0, 1, 0], "global") == told(caplog, [3, 1]) == []
    assert told(caplog, [3, 0, 1, 0], "validation") == [said.format(0, "validation")]
    for sets in ("local", "both", "common"):
        assert told(caplog, [3, 0, 1, 0], sets) == [said.format(0, "test")]
        assert told(caplog, [3, 0, 1, 0], sets, seed=1) == [said.format(1, "test")]


def test_a_method_that_never_prepares_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """After the last round it still does, before the scores."""
    assert [told(caplog, [3], prepares=late) for late in (1, 2)] == [[], []]
    assert told(caplog, [3], prepares=3) == ["late prepares after 3 rounds; of 2 it never does"]


ADAM = OptimizerConfig(name="adam", lr=0.001)


@pytest.mark.parametrize(
    ("odd", "said", "fit"),
    [
        (
            replace(ADAM, momentum=0.9),
            "adam has no momentum: protocol.optimizer.momentum=0.9 is not used",
            [OptimizerConfig(momentum=0.9), ADAM],
        ),
        (
            OptimizerConfig(name="adamw", weight_decay=0.01),
            "adamw with protocol.optimizer.lr=0.1: its usual rate is 0.001",
            [OptimizerConfig(lr=0.5), replace(ADAM, lr=0.049)],
        ),
        (
            OptimizerConfig(name="adamw", lr=0.001),
            "adamw without protocol.optimizer.weight_decay is adam",
            [OptimizerConfig(name="adamw", lr=0.001, weight_decay=0.01), ADAM],
        ),
    ],
)
def test_settings_that_do_not_suit_the_optimiser_are_told_of(
    odd: OptimizerConfig, said: str, fit: list[OptimizerConfig], caplog: pytest.LogCaptureFixture
) -> None:
    assert [told(caplog, [3], optimizer=each) for each in fit] == [[], []]
    assert told(caplog, [3], optimizer=odd) == [said]


def test_rounds_between_scores_beyond_the_run_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, [3], every=2) == []
    said = "protocol.eval_every=3 with 2 rounds: only round 0 and the last are scored"
    assert told(caplog, [3], every=3) == [said]


@pytest.mark.parametrize(
    ("seconds", "rounds", "expected"),
    [(0, 0, []), (10, 0, [3, 6]), (8, 0, [2, 4, 6]), (0, 3, [3, 6]), (8, 3, [2, 3, 5, 6]), (0, 4, [4]), (1e9, 9, [])],
)
def test_checkpoints_come_every_so_many_seconds_and_rounds(
    seconds: float, rounds: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight rounds of four seconds each; none after the last. With each go the rounds so far, for who looks."""
    clock, written = [100.0], list[tuple[str, object, int]]()

    class Played:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def begin(self) -> Any:
            return SimpleNamespace(round=0, history=0)

        def done(self, state: Any) -> bool:
            return bool(state.round == 8)

        def step(self, state: Any) -> None:
            state.round += 1
            state.history = state.round
            clock[0] += 4

    def nothing(*_: Any) -> None:
        pass

    for name in ("check_rounds", "describe", "check_hooks", "check_cuts"):
        monkeypatch.setattr(execution, name, nothing)
    for name, value in {
        "split_data": (None, None), "set_up": SimpleNamespace(seen=None), "local_reference": (None, ""),
        "client_names": None, "tell_of_clients": None,
        "pick_trainer": SimpleNamespace(close=nothing), "write": {"acc": 1.0},
    }.items():  # fmt: skip
        monkeypatch.setattr(execution, name, lambda *_, value=value: value)
    monkeypatch.setattr(execution, "Simulation", Played)
    monkeypatch.setattr(execution, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    saves = execution.states, "save_state"
    monkeypatch.setattr(*saves, lambda path, state, key: written.append((path, key, state.round)))
    chosen: Any = SimpleNamespace(
        protocol=SimpleNamespace(rounds=8, unseen=0),
        settings=SimpleNamespace(
            checkpoint=CheckpointConfig(seconds=seconds, rounds=rounds), save_models=False, progress="none"
        ),
        model=SimpleNamespace(dealt=lambda _: (None, None)),
        hardware=None,
        recorders=(),
    )
    folder: Any = SimpleNamespace(
        key="key",
        labels=Labels(*"dpmfq", 0),
        begin=nothing,
        clear=nothing,
        checkpoint="file",
        write_history=lambda history: written.append(("history", "", history)),
    )
    observer: Any = SimpleNamespace(start=nothing)
    assert execution.experiment(chosen, folder, observer) == {"acc": 1.0}
    assert written == [each for done in expected for each in (("file", "key", done), ("history", "", done))]


def test_a_run_leaves_a_consistent_folder(tmp_path: Path) -> None:
    chosen = config(tmp_path, "method=fedcollab", "method.discriminator.rounds=20")
    result = run.execute(chosen)
    row, clients = result.row, pd.read_csv(result.folder / "clients.csv")
    assert row["acc"] == pytest.approx(clients["acc"].mean())
    gains = clients["acc"] - clients["acc_local"]
    assert row["ipr"] == pytest.approx(100 * (gains > 1e-9).mean())
    assert row["rsd"] == pytest.approx(gains.std(ddof=0))
    partition = Partition.load(result.folder / "partition.npz")
    assert partition.hash == row["partition_hash"]
    assert [len(samples) for samples in partition.train] == clients["size_train"].tolist()
    weights = np.load(result.folder / "collaboration.npz")["W"]
    assert weights.sum(1) == pytest.approx(np.ones(4))
    saved = OmegaConf.to_container(OmegaConf.load(result.folder / "config.yaml"))
    assert from_plain(saved).key == row["key"]  # type: ignore[arg-type]
    assert row["version_torch"] == torch.__version__
    assert json.loads((result.folder / "environment.json").read_text())["device"] == "cpu"
    rounds = pd.read_csv(result.folder / "rounds.csv")
    assert rounds["round"].tolist() == [0, 1, 2, 3, 4]
    assert rounds["bytes_up"].is_monotonic_increasing
    assert not (result.folder / "checkpoint.safetensors").exists()
    local = json.loads(next(tmp_path.rglob("local/*/result.json")).read_text())
    assert local["key"] == row["local_key"]
    assert np.allclose(clients["acc_local"], pd.read_csv(next(tmp_path.rglob("local/*/clients.csv")))["acc"])


def test_a_finished_run_is_read_not_repeated_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run.execute(config(tmp_path, "method=fedavg"))
    before = rows(first.folder)
    trained = count_rounds(monkeypatch)
    assert run.execute(config(tmp_path, "method=fedavg")).row == first.row
    assert trained == []
    again = run.execute(config(tmp_path, "method=fedavg", "force=true"))
    assert trained == [0, 1, 2, 3]  # Local is not repeated
    assert rows(again.folder) == before
    run.execute(config(tmp_path, "method=fedprox"))
    assert len(trained) == 8  # another method shares the Local run


def test_a_refused_run_leaves_nothing(tmp_path: Path) -> None:
    for overrides in (["model=lenet5"], ["protocol.cohort=9"], ["partition.num_clients=500"]):
        with pytest.raises(FedbenchError):
            run.execute(config(tmp_path, "method=fedavg", *overrides))
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_forced_run_that_is_refused_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run.execute(config(tmp_path, "method=local"))

    def gone(_: object) -> None:
        raise DataMissing("gone")

    monkeypatch.setattr(fingerprint, "load_data", gone)
    with pytest.raises(DataMissing):
        run.execute(config(tmp_path, "method=local", "force=true"))
    assert run.execute(config(tmp_path, "method=local")).row == first.row


@pytest.mark.parametrize("method", sampled(["fedavg", "ditto", "fedcollab"], every=3))
def test_one_client_is_a_federation_that_gains_nothing(method: str, tmp_path: Path) -> None:
    result = run.execute(config(tmp_path, f"method={method}", "partition.num_clients=1"))
    clients = pd.read_csv(result.folder / "clients.csv")
    assert len(clients) == 1
    if method != "ditto":  # which is pulled towards what it came from
        assert (result.row["ipr"], result.row["rsd"]) == (0, 0)
        assert clients["acc"].tolist() == clients["acc_local"].tolist()


def test_a_cohort_of_one_scores_the_client_that_trained(tmp_path: Path) -> None:
    options = ["protocol.cohort=1", "protocol.rounds=1", "protocol.score=trained"]
    result = run.execute(config(tmp_path, "method=fedavg", *options))
    clients = pd.read_csv(result.folder / "clients.csv")
    assert clients["acc"].notna().sum() == clients["acc_local"].notna().sum() == 1
    assert result.row["acc"] == pytest.approx(clients["acc"].dropna().item())
    assert (result.row["ipr"], result.row["rsd"]) == (0, 0), "after one round FedAvg's clients are Local's"


@pytest.mark.slow
def test_a_run_waits_for_the_reference_that_another_process_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a parallel sweep; the other one dies here, so this one has to make it."""
    chosen = config(tmp_path, "method=fedavg")
    assert chosen.local is not None
    reference = folder_of(chosen.local)
    holder = (
        "import time; from pathlib import Path; from fedbench.core.locks import FolderLock\n"
        f"lock = FolderLock(Path({str(reference.path)!r})); lock.acquire(); print('held', flush=True); time.sleep(60)"
    )
    waits: list[float] = []
    asleep = time.sleep

    def wait(seconds: float) -> None:
        if seconds != locks.PATIENCE:  # others wait too
            asleep(seconds)
            return
        waits.append(seconds)
        if len(waits) == 3:
            process.kill()
            process.wait()

    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        monkeypatch.setattr(time, "sleep", wait)
        row = run.execute(chosen).row
    assert len(waits) == 3
    assert reference.status() == "finished"
    assert row["ipr"] is not None


def test_a_damaged_reference_is_named(tmp_path: Path) -> None:
    local = run.execute(config(tmp_path, "method=local")).folder
    (local / "clients.csv").write_text("client,acc\n0,many\n")
    with pytest.raises(FedbenchError, match=r"clients\.csv is damaged .*; .*rm -r"):
        run.execute(config(tmp_path, "method=fedavg"))
    assert [path.parent for path in tmp_path.rglob("result.json")] == [local]


@pytest.mark.slow
def test_engines_share_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardware is no part of what a result is: another engine finds the run finished, or ends it alike."""
    looped = run.execute(config(tmp_path, "method=ditto", "hardware.engine=looped"))
    trained = count_rounds(monkeypatch)
    found = run.execute(config(tmp_path, "method=ditto", "hardware.engine=stacked", "hardware.chunk=3"))
    assert (trained, found.row) == ([], looped.row)
    stacked = run.execute(config(tmp_path / "again", "method=ditto", "hardware.engine=stacked"))
    assert stacked.row["key"] == looped.row["key"]
    assert stacked.row["acc"] == pytest.approx(looped.row["acc"], abs=1.5), "rounding may turn a sample or two"


@pytest.mark.slow
def test_offline_wandb_logs_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = run.execute(config(tmp_path, "method=local", "wandb.enabled=true"))
    assert result.row["rounds"] == 4
    assert list(result.folder.rglob("*.wandb"))


@pytest.mark.slow
def test_a_fixed_partition_under_varying_seeds(tmp_path: Path) -> None:
    """partition_seed keeps who owns what; everything else still varies, and so does the key."""
    fixed = [run.execute(config(tmp_path, f"seed={seed}", "partition_seed=5")).row for seed in (0, 1)]
    free = [run.execute(config(tmp_path, f"seed={seed}")).row for seed in (0, 1, 5)]
    assert fixed[0]["partition_hash"] == fixed[1]["partition_hash"] == free[2]["partition_hash"]
    assert free[0]["partition_hash"] != free[1]["partition_hash"]
    assert len({row["key"] for row in (*fixed, *free)}) == 5
    assert fixed[0]["local_key"] != free[0]["local_key"]
    same = run.execute(config(tmp_path, "seed=0", "partition_seed=0")).row
    assert same["key"] == free[0]["key"]


@pytest.mark.slow
def test_a_trial_is_its_validation_accuracy_and_needs_no_local(tmp_path: Path) -> None:
    held = "protocol.test.val_fraction=0.3"
    trial = run.execute(config(tmp_path, held, "protocol.test.sets=validation"))
    assert len(list(tmp_path.rglob("result.json"))) == 1
    assert (trial.row["test_set"], trial.row["score"]) == ("val", trial.row["acc_on_val"])
    assert np.isnan(trial.column("ipr"))
    final = run.execute(config(tmp_path, held, "protocol.test.once=true"))
    assert final.row["partition_hash"] == trial.row["partition_hash"]
    assert final.row["acc_on_val"] == trial.row["score"]
    assert final.curve("val") == trial.curve("val")
    *before, last = final.curve("local")
    assert np.isnan(before).all()
    assert 100 * last == pytest.approx(final.row["acc"])


@pytest.mark.slow
def test_a_reference_of_another_rate(tmp_path: Path) -> None:
    """A tuned method is measured against Local at Local's own rate."""
    paired = run.execute(config(tmp_path))
    apart = run.execute(config(tmp_path, "reference_lr=0.02"))
    local = run.execute(config(tmp_path, "method=local", "protocol.optimizer.lr=0.02"))
    assert apart.row["acc"] == paired.row["acc"]
    assert apart.row["local_key"] == local.row["key"] != paired.row["local_key"]
    assert apart.row["key"] != paired.row["key"]
    same = run.execute(config(tmp_path, f"reference_lr={paired.config['protocol']['optimizer']['lr']}"))
    assert same.row["key"] == paired.row["key"]
    unused = run.execute(config(tmp_path, "method=local", "protocol.optimizer.lr=0.02", "reference_lr=0.5"))
    assert unused.row["key"] == local.row["key"]


@pytest.mark.slow
def test_a_reference_of_another_seed(tmp_path: Path) -> None:
    """A method that is Local ties with Local of its own seed; against another's, clients gain or lose by chance."""
    alone = (
        "method=fedcollab",
        "method.C=0",
        "seed=7",
        "partition_seed=1",
    )  # every client a coalition of its own
    paired = run.execute(config(tmp_path, *alone))
    apart = run.execute(config(tmp_path, *alone, "reference_seed=1"))
    assert apart.row["acc"] == paired.row["acc"]
    assert apart.row["partition_hash"] == paired.row["partition_hash"]
    assert apart.row["key"] != paired.row["key"]
    assert (paired.row["ipr"], paired.row["rsd"]) == (0, pytest.approx(0, abs=1e-9))
    assert apart.row["ipr"] > 0

    local = run.execute(config(tmp_path, "method=local", "seed=1"))
    assert local.row["key"] == apart.row["local_key"]
    mine, theirs = (pd.read_csv(each.folder / "clients.csv").acc for each in (apart, local))
    gains = mine - theirs
    assert apart.row["ipr"] == pytest.approx(100 * (gains > 1e-9).mean())
    assert apart.row["rsd"] == pytest.approx(gains.std(ddof=0))

    same = run.execute(config(tmp_path, *alone, "reference_seed=7"))
    assert same.row["key"] == paired.row["key"]
    unused = run.execute(config(tmp_path, "method=local", "seed=1", "reference_seed=3"))
    assert unused.row["key"] == local.row["key"]


@pytest.mark.parametrize("method", sampled(["fedavg", "ditto", "fedcollab"], every=3))
def test_an_interrupted_run_goes_on_to_the_same_rows(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run.execute(config(tmp_path / "whole", f"method={method}", "save_models=true"))
    overrides = [f"method={method}", "save_models=true", "checkpoint.rounds=1"]
    run.execute(config(tmp_path / "parts", "method=local"))
    for stop in (1, 3):
        with monkeypatch.context() as patch:
            interrupt_after(patch, stop)
            with pytest.raises(KeyboardInterrupt):
                run.execute(config(tmp_path / "parts", *overrides))
    trained = count_rounds(monkeypatch)
    parts = run.execute(config(tmp_path / "parts", *overrides))
    assert trained == [3]
    assert rows(parts.folder) == rows(whole.folder)
    assert same_models(parts.folder, whole.folder)


@pytest.mark.slow
def test_a_forced_run_goes_on_with_its_own_checkpoint_unless_that_lacks_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that an interruption prints holds force=true again, as does a job that Slurm queues again."""
    forced = ["method=fedavg", "checkpoint.rounds=1", "force=true"]
    first = run.execute(config(tmp_path, "method=fedavg"))
    for record, begins in (("[]", 2), ("[update_variance]", 0)):
        with monkeypatch.context() as patch:
            interrupt_after(patch, 2)
            with pytest.raises(KeyboardInterrupt):
                run.execute(config(tmp_path, *forced))
        with monkeypatch.context() as patch:
            trained = count_rounds(patch)
            again = run.execute(config(tmp_path, *forced, f"record={record}"))
        assert trained == [*range(begins, 4)]
        assert again.row["acc"] == first.row["acc"]


@pytest.mark.parametrize("spoiled", sampled(["code", "checkpoint"], every=2))
def test_a_forced_run_begins_anew_over_what_is_of_other_code_or_damaged(
    spoiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = ["method=fedavg", "checkpoint.rounds=1", "force=true", "stale=error"]
    run.execute(config(tmp_path, "method=local"))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            run.execute(config(tmp_path, *forced))
    (checkpoint,) = tmp_path.rglob("checkpoint.safetensors")
    if spoiled == "code":
        (checkpoint.parent / CODE).write_text("method:0123456789ab engine:0123456789ab\n")
    else:
        checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    trained = count_rounds(monkeypatch)
    run.execute(config(tmp_path, *forced))
    assert trained == [0, 1, 2, 3]


def test_a_checkpoint_of_another_config_or_a_damaged_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = {}
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        for lr in (0.1, 0.2):
            with pytest.raises(KeyboardInterrupt):
                run.execute(config(tmp_path, "method=local", "checkpoint.rounds=1", f"protocol.optimizer.lr={lr}"))
            (checkpoints[lr],) = set(tmp_path.rglob("checkpoint.safetensors")) - set(checkpoints.values())
    checkpoints[0.1].write_bytes(checkpoints[0.2].read_bytes())
    with pytest.raises(CheckpointError, match="another configuration"):
        run.execute(config(tmp_path, "method=local", "protocol.optimizer.lr=0.1"))
    damaged = bytearray(checkpoints[0.2].read_bytes())
    damaged[-3] ^= 1
    checkpoints[0.2].write_bytes(damaged)
    with pytest.raises(CheckpointError, match="damaged"):
        run.execute(config(tmp_path, "method=local", "protocol.optimizer.lr=0.2"))
    assert not list(tmp_path.rglob("result.json"))


def test_what_a_finished_run_cannot_give_any_more_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    brief = ("method=local", "protocol.rounds=1")
    folder = run.execute(config(tmp_path, *brief)).folder
    warn_once.cache_clear()
    assert run.execute(
        config(tmp_path, *brief, "save_models=true", "wandb.enabled=true", "wandb.mode=disabled")
    ).earlier
    assert f"{folder} was made without save_models=true; force=true makes it again" in caplog.messages
    assert "a run that has finished logs nothing to wandb; force=true makes it again" in caplog.messages


KEPT = ["checkpoint.rounds=1", "save_models=true"]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    assert kill_and_rerun(tmp_path, ["method=ditto", "protocol.rounds=40", *KEPT], kills=4, seed=0) == 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["workers", "stacked"])
def test_ten_kills_change_nothing(engine: str, tmp_path: Path) -> None:
    overrides = ["method=fedcollab", "method.discriminator.rounds=20", "protocol.rounds=300"]
    overrides += ["protocol.cohort=50%", f"hardware.engine={engine}", "hardware.workers=2", *KEPT]
    assert kill_and_rerun(tmp_path, overrides, kills=10, seed=os.getpid()) == 10


@pytest.mark.slow
def test_the_command_killed_and_given_again_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    overrides = [*FAST, "method=local", "protocol.rounds=80", "progress=none", "hardware=cpu", *KEPT]
    command = [sys.executable, "-m", "fedbench", *overrides, f"runs_dir={tmp_path / 'parts'}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not stamps(tmp_path):
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not list(tmp_path.rglob("result.json"))
    subprocess.run(command, check=True, capture_output=True)
    whole = run.execute(config(tmp_path / "whole", *overrides))
    (parts,) = tmp_path.glob("parts/**/result.json")
    assert rows(parts.parent) == rows(whole.folder)


def test_a_failure_is_kept_until_the_run_succeeds(tmp_path: Path) -> None:
    folder = run.RunFolder(tmp_path, "0" * 16, labels_of(config(tmp_path)))
    with pytest.raises(ValueError, match="broken"), folder, folder.noting_failure():
        raise ValueError("broken\nfor a reason")
    assert folder.failure() == "ValueError: broken for a reason"
    with folder, folder.noting_failure():
        pass
    assert folder.failure() == ""
    for none in (KeyboardInterrupt, FolderInUse):  # the latter: another process's run, which may well succeed
        with pytest.raises(none), folder, folder.noting_failure():
            raise none
        assert folder.failure() == ""


def test_a_run_that_another_process_finished_before_the_lock_was_had_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config(tmp_path, "method=local")
    enter = RunFolder.__enter__

    def late(folder: RunFolder) -> RunFolder:
        with monkeypatch.context() as other:
            other.setattr(RunFolder, "__enter__", enter)
            run.execute(chosen)
        return enter(folder)

    monkeypatch.setattr(RunFolder, "__enter__", late)
    trained = count_rounds(monkeypatch)
    assert run.execute(chosen).earlier
    assert len(trained) == chosen.protocol.rounds


@pytest.mark.slow
def test_a_client_a_sample_is_refused_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "dataset=digits",
        "partition=homo",
        "partition.num_clients=1797",
        f"runs_dir={tmp_path}/runs",
    ]
    assert main([*command, "progress=none", "protocol.rounds=1"]) == 2
    error = capsys.readouterr().err
    assert "leaves none of 1797 clients a test sample" in error
    assert "protocol.test.fraction, or fewer clients" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sets", ["local", "both", "common"])
def test_every_kind_of_run_that_scores_clients_on_their_own_samples(sets: str) -> None:
    data = Synthetic(train=20, test=10, classes=2).load()
    with pytest.raises(ConfigError, match="none of 20 clients a test sample"):
        make_partition(Homogeneous(num_clients=20), data, TestConfig(sets=sets), 0)
    make_partition(Homogeneous(num_clients=20), data, TestConfig(sets="global"), 0)
    make_partition(Homogeneous(num_clients=19), data, TestConfig(sets=sets), 0)  # one has two samples


def test_validation_samples_that_nobody_gets() -> None:
    data = Synthetic(train=20, test=10, classes=2).load()
    with pytest.raises(ConfigError, match=r"none of 10 clients a val sample.*protocol\.test\.val_fraction"):
        make_partition(Homogeneous(num_clients=10), data, TestConfig(val_fraction=0.2), 0)


def test_only_clients_without_test_samples_were_scored() -> None:
    """What the draw of clients decides is known at the end only: no result then, instead of one without a number."""
    nobody = Tally(np.zeros(2), np.zeros(2))
    history = History([Record(1, {"local": nobody}, 1, 1, {})])
    with pytest.raises(ConfigError, match=r"no client that was scored .* local test set"):
        summarise(Labels(*"dpmfq", 0), "key", history, Reading(), partition_hash="")


def test_classes_that_are_trained_and_not_tested_are_found(tmp_path: Path) -> None:
    """In a set of all, and in those of clients; validation samples are no test."""
    x, y = np.random.default_rng(0).normal(size=(62, 5)), np.array([0] * 30 + [1] * 30 + [2, 7])
    np.savez(tmp_path / "rare.npz", x=x, y=y)
    chosen = ["method=local", "dataset=npz", f"dataset.path={tmp_path / 'rare.npz'}", "partition=homo"]
    chosen += ["partition.num_clients=2", "hardware=cpu", "protocol.test.val_fraction=0.2"]
    for sets in ("global", "local"):
        setup = building.build(
            config(tmp_path, *chosen, f"protocol.test.pool={sets != 'global'}", f"protocol.test.sets={sets}")
        )
        federation = setup.federation
        tests = federation.global_test if sets == "global" else federation.sets["local"].values
        trained = {*federation.y[federation.sets["train"].values].tolist()}
        expected = trained - {*federation.y[tests].tolist()}
        assert execution.untested_classes(setup) == sorted(expected)
        if sets == "global":
            assert {2, 3} & trained == expected, "single samples are not held out"
