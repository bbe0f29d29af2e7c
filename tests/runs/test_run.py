"""Whole runs on digits: the folder, the reference, engines, one client."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

from fedbench.core.errors import FedbenchError
from fedbench.data.partition import Partition
from fedbench.runs import execution
from fedbench.runs import execution as run
from fedbench.runs.config import from_plain, run_key
from tests.helpers.runs import config, count_rounds, rows


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
    assert run_key(from_plain(saved)) == row["key"]  # type: ignore[arg-type]
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


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedcollab"])
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


def test_a_run_waits_for_the_reference_that_another_process_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a parallel sweep; the other one dies here, so this one has to make it."""
    chosen = config(tmp_path, "method=fedavg")
    assert chosen.local is not None
    reference = execution.folder_of(chosen.local)
    holder = (
        "import time; from pathlib import Path; from fedbench.core.files import FolderLock\n"
        f"lock = FolderLock(Path({str(reference.path)!r})); lock.acquire(); print('held', flush=True); time.sleep(60)"
    )
    waits: list[float] = []
    asleep = time.sleep

    def wait(seconds: float) -> None:
        if seconds != run.PATIENCE:  # others wait too
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


def test_engines_share_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardware is no part of what a result is: another engine finds the run finished, or ends it alike."""
    looped = run.execute(config(tmp_path, "method=ditto", "hardware.engine=looped"))
    trained = count_rounds(monkeypatch)
    found = run.execute(config(tmp_path, "method=ditto", "hardware.engine=stacked", "hardware.chunk=3"))
    assert (trained, found.row) == ([], looped.row)
    stacked = run.execute(config(tmp_path / "again", "method=ditto", "hardware.engine=stacked"))
    assert stacked.row["key"] == looped.row["key"]
    assert stacked.row["acc"] == pytest.approx(looped.row["acc"], abs=1.5), "rounding may turn a sample or two"


def test_offline_wandb_logs_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = run.execute(config(tmp_path, "method=local", "wandb.enabled=true"))
    assert result.row["rounds"] == 4
    assert list(result.folder.rglob("*.wandb"))


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
