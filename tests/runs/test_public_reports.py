"""Reports on other programs that are public, tried here: results/reliability/faults-2026-11.md names each."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedbench.cli.program import main
from fedbench.config import compose
from fedbench.config.schema import OptimizerConfig, WorkConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError, Diverged
from fedbench.core.trees import Tree
from fedbench.data.datasets.own import Npz
from fedbench.data.partition import make_partition
from fedbench.engine.contract import Client
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedopt import FedAdam
from fedbench.methods.fedrep import FedRep
from fedbench.runs.config import resolve
from tests.helpers.examples import FORTY
from tests.helpers.tiers import sampled
from tests.methods.toys import BODY, FOUR, close, federation, gap, initial, models, samples, setup, simulate, steps


@pytest.mark.parametrize("method", [FedAvg(), FedAdam()], ids=["fedavg", "fedadam"])
def test_rounds_whose_uploads_are_all_lost_leave_the_server_as_it_was(method: FedAvg) -> None:
    """flwrlabs/flower#7645 and #7708: a weighted mean whose weights add up to 0 is nan, or ends the run."""
    chosen = setup(method, federation(FOUR), rounds=3, work=WorkConfig(dropout=1 - 1e-9))
    simulation, state = steps(chosen, 0)
    begun = trees.clone(state.server)
    for _ in range(3):
        simulation.step(state)
    assert gap(state.server, begun) == 0
    assert [record.tallies["local"].mean() for record in state.history.records] == (
        [state.history.records[0].tallies["local"].mean()] * len(state.history.records)
    )


def test_a_data_set_too_small_for_a_test_split_is_refused_before_training(tmp_path: Path) -> None:
    """flwrlabs/flower#7693: no client reports a sample that was evaluated."""
    np.savez(tmp_path / "few.npz", x=np.arange(6.0).reshape(3, 2), y=[0, 1, 1])
    data = Npz(path=str(tmp_path / "few.npz")).load()
    for sets in ("local", "global"):
        run = resolve(
            compose.compose(
                ["partition=homo", "partition.num_clients=3", f"protocol.test.sets={sets}", "protocol=pfllib"]
            )
        )
        test = dataclasses.replace(run.protocol.test, pool=False)
        with pytest.raises(
            ConfigError, match=r"nothing can be scored|no test split|without a training sample|more than"
        ):
            make_partition(run.partition, data, test, 0)


def test_iid_clients_have_every_class_where_the_samples_are_sorted_by_label() -> None:
    """flwrlabs/flower#7327 and #7290: equal parts of a sorted data set are cut without a shuffle."""
    y = np.repeat(np.arange(2), 500)
    data = dataclasses.replace(
        FORTY, x=np.zeros((1000, 1, 2, 2), np.uint8), y=y, num_train=1000, classes=2, domain=None
    )
    run = resolve(compose.compose(["partition=homo", "partition.num_clients=2", "protocol=quick"]))
    counts = make_partition(run.partition, data, run.protocol.test, 0).label_counts(y)
    shares = counts / counts.sum(1, keepdims=True)
    assert np.abs(shares - 0.5).max() < 4 * np.sqrt(0.25 / 500)  # four standard deviations of a draw


@pytest.mark.parametrize("epochs", ["0.5", "1.5", "0"])
def test_a_fraction_of_an_epoch_is_refused(epochs: str) -> None:
    """makgyver/fluke#26: half an epoch is wished for; steps say it."""
    with pytest.raises(ConfigError, match="epochs"):
        resolve(compose.compose([f"protocol.local.epochs={epochs}"]))


def test_half_an_epoch_is_half_of_its_steps() -> None:
    """makgyver/fluke#26: all clients stop after half of the steps of two epochs, which is one epoch."""
    half = setup(FedAvg(), federation((16, 16)), epochs=2, work=WorkConfig(partial=1.0, fraction=0.5))
    whole = setup(FedAvg(), federation((16, 16)), epochs=1)
    assert gap(models(half, simulate(half)), models(whole, simulate(whole))) == 0


@pytest.mark.parametrize("correct", [False, True])
def test_adam_on_the_server_corrects_its_start_if_it_is_told_to(correct: bool) -> None:
    """makgyver/fluke#33: moments that begin at 0 are too small in the first rounds."""
    method = FedAdam(correct=correct, tau=1e-3, first=0.0, server_lr=0.1, beta1=0.9, beta2=0.99)
    chosen = setup(method, federation((9,)), rounds=3, epochs=1, batch=50)
    simulation, state = steps(chosen, 0)
    w = {name: leaf.clone() for name, leaf in trees.part(state.server, "base").items()}
    m, v = ({name: torch.zeros_like(leaf) for name, leaf in w.items()} for _ in range(2))
    x, y = samples(chosen, 0)
    for t in (1, 2, 3):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in w.items()}
        hidden = torch.relu(x.flatten(1) @ leaves["fc.0.weight"].T + leaves["fc.0.bias"])
        nn.functional.cross_entropy(hidden @ leaves["head.weight"].T + leaves["head.bias"], y).backward()
        factor = (1 - 0.99**t) ** 0.5 / (1 - 0.9**t) if correct else 1.0
        for name, leaf in leaves.items():
            D = -0.1 * leaf.grad  # the change by one step of a client whose rate is 0.1
            m[name] = 0.9 * m[name] + 0.1 * D
            v[name] = 0.99 * v[name] + 0.01 * D**2
            w[name] = w[name] + 0.1 * factor * m[name] / (v[name].sqrt() + 1e-3)
        simulation.step(state)
        assert close(trees.part(state.server, "base"), w, 1e-9)


class Poisoned(FedAvg):
    """The upload of the client of 13 samples is not finite."""

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        return {name: leaf.where(client.size != 13, torch.inf) for name, leaf in work.items()}, {}


def test_an_upload_that_is_not_finite_ends_the_run_and_names_its_client() -> None:
    """NVIDIA/NVFlare#5240: one such client makes the whole average nan, and training goes on."""
    with pytest.raises(Diverged, match=r"in round 1 on client 1: .* not finite"):
        simulate(setup(Poisoned(), federation(FOUR)))


def test_a_run_is_the_same_whatever_order_its_clients_end_in() -> None:
    """NVIDIA/NVFlare#4928: uploads are added up in the order in which they come."""
    chosen = setup(FedAvg(), federation(FOUR), rounds=3)
    ways = [simulate(chosen), simulate(chosen), simulate(chosen, WorkersTrainer(chosen, 2))]
    for one, other in itertools.pairwise(ways):
        assert gap(one.server, other.server) == 0


@pytest.mark.parametrize(
    ("config", "optimizer"),
    [
        (OptimizerConfig(name="adam", lr=0.01, weight_decay=0.3), torch.optim.Adam),
        (OptimizerConfig(lr=0.01, weight_decay=0.3), torch.optim.SGD),
    ],
    ids=["adam", "sgd"],
)
def test_weight_decay_is_a_penalty_in_the_gradient_once_a_step(
    config: OptimizerConfig, optimizer: type[torch.optim.Optimizer]
) -> None:
    """flagos-ai/FlagGems#4988: Adam decays as AdamW does; huggingface/pytorch-image-models#2750: twice a step."""
    chosen = setup(FedAvg(), federation((9,)), rounds=1, epochs=5, batch=50, optimizer=config)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 4)).double()
    leaves = dict(zip(("fc.0.weight", "fc.0.bias", "head.weight", "head.bias"), net.parameters(), strict=True))
    with torch.no_grad():
        for name, leaf in leaves.items():
            leaf.copy_(initial(chosen)[name])
    plain, (x, y) = optimizer(net.parameters(), lr=0.01, weight_decay=0.3), samples(chosen, 0)
    for _ in range(5):
        plain.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        plain.step()
    found = trees.row(models(chosen, simulate(chosen)), 0)
    assert close(found, {name: leaf.detach() for name, leaf in leaves.items()}, 1e-9)


def test_what_a_stage_leaves_alone_does_not_decay() -> None:
    """huggingface/pytorch-image-models#2750: decay reaches every leaf, also one whose turn it is not."""
    decay = OptimizerConfig(lr=0.05, weight_decay=0.5)
    chosen = setup(FedRep(head_epochs=1), federation((9,)), rounds=1, epochs=1, batch=50, optimizer=decay)
    whole = initial(chosen)
    x, y = samples(chosen, 0)
    order = [("head.weight", "head.bias"), tuple(BODY)]  # the head's step comes first
    for moved in order:
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in whole.items()}
        hidden = torch.relu(x.flatten(1) @ leaves["fc.0.weight"].T + leaves["fc.0.bias"])
        nn.functional.cross_entropy(hidden @ leaves["head.weight"].T + leaves["head.bias"], y).backward()
        whole = {n: leaf - 0.05 * (leaves[n].grad + 0.5 * leaf) if n in moved else leaf for n, leaf in whole.items()}
    assert close(trees.row(models(chosen, simulate(chosen)), 0), whole, 1e-9)


@pytest.mark.parametrize("spec", sampled(["homo", "dir0.1", "quantity0.3", "pathological5"], every=4))
def test_no_client_is_scored_or_validated_on_what_any_client_trains_on(spec: str) -> None:
    """autowarefoundation/auto_e2e#113: the samples that are scored are those of training."""
    y = np.tile(np.arange(10), 100)
    data = dataclasses.replace(
        FORTY, x=np.zeros((1000, 1, 2, 2), np.uint8), y=y, num_train=900, classes=10, domain=None
    )
    run = resolve(compose.compose([f"partition={spec}", "protocol=quick", "protocol.test.val_fraction=0.2"]))
    partition = make_partition(run.partition, data, run.protocol.test, 0)
    used = np.concatenate([*partition.train, *partition.val, *partition.test])
    assert len(np.unique(used)) == len(used) == 1000
    assert min(map(len, partition.val)) > 0


@pytest.mark.slow
def test_a_launcher_that_a_swept_experiment_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """hydra-ecosystem/hydra#3231: it is taken without a word, and the sweep goes on with the launcher that it had.

    Options may stand between overrides, where argparse knows none.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDBENCH_RUNS", raising=False)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    late = "# @package _global_\ndefaults:\n  - override /hydra/launcher: joblib\nseed: 1\n"
    (tmp_path / "conf" / "experiment" / "late.yaml").write_text(late)
    (tmp_path / "conf" / "experiment" / "plain.yaml").write_text("# @package _global_\nseed: 2\n")
    small = ["method=local", "dataset=digits", "dataset.limit=200", "protocol.rounds=1", "hardware=cpu"]
    assert main(["-m", "experiment=late,plain", "--config-dir", str(tmp_path / "conf"), *small]) == 2
    said = capfd.readouterr()
    assert "hydra/launcher=joblib in a swept config has no effect; add it to the command" in said.err
    assert "1 of 2 runs failed" in said.out
    assert [folder.name[:5] for folder in (tmp_path / "runs").glob("*/*/local/*")] == ["seed2"]


@pytest.mark.slow
def test_so_it_is_where_jobs_run_in_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Joblib, which a config names for the whole sweep, and submitit, which one of the swept names."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="hydra-submitit-launcher is not installed")
    monkeypatch.chdir(tmp_path)
    for group in ("experiment", "hardware"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    override = "# @package _global_\ndefaults:\n{}  - override /hydra/launcher: {}\n"
    late, whole = override.format("", "submitit_local"), override.format("  - /hardware/cpu@hardware\n", "joblib")
    (tmp_path / "conf" / "experiment" / "late.yaml").write_text(late)
    (tmp_path / "conf" / "experiment" / "plain.yaml").write_text("# @package _global_\nseed: 2\n")
    (tmp_path / "conf" / "hardware" / "mine.yaml").write_text(whole)
    small = ["method=local", "dataset=digits", "dataset.limit=200", "protocol.rounds=1", f"runs_dir={tmp_path}/runs"]
    sweep = ["-m", "experiment=late,plain", "hardware=mine", "--config-dir", str(tmp_path / "conf"), *small]
    assert main(sweep) == 2
    said = capfd.readouterr()
    assert "hydra/launcher=submitit_local in a swept config has no effect; add it to the command" in said.err
    assert [folder.name[:5] for folder in (tmp_path / "runs").glob("*/*/local/*")] == ["seed2"]
