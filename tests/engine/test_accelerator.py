"""Runs under a GPU's rules of placement, without one: nothing is refused, and the host hardly waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config import groups
from fedbench.config.compose import compose
from fedbench.config.schema import OptimizerConfig
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine import hardware
from fedbench.engine.contract import Client, Cohort
from fedbench.engine.hooks import HookError
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedrep import FedRep
from fedbench.models import MODELS
from fedbench.models.small import MLP
from fedbench.runs import building, execution
from fedbench.runs.config import resolve
from fedbench.testing.toys import KINDS, Subject, federation, setup, simulate
from tests.helpers.accelerator import DEVICE, Accelerator, Misplaced
from tests.helpers.pretended import ENGINES, Trial, federated, trial
from tests.helpers.tiers import sampled

PRESETS = sorted(file.stem for file in (groups.conf_dir() / "method").glob("*.yaml"))
# Of each kind of server: means, a graph, coalitions, models of all, statistics of classes, learning, drawn noise,
# subspaces.
FEW = [
    "fedavg",
    "cfl",
    "fedfomo",
    "fedgen",
    "fednova",
    "fedproto",
    "fedrema",
    "ifca",
    "perfedavg",
    "pfedgraph",
    "sosicfl",
    "fedsac",
]
WITH_MATRIX = ("cfl", "fedfomo", "fedrema", "pfedgraph", "fedsac")
MOST = 8  # waits a round


def check(found: Trial, more: int = 0) -> None:
    assert found.apart < 1e-6
    assert found.step == 0, found.kinds
    assert found.round <= MOST + more, found.kinds


def of_clients(preset: str, engine: str) -> int:
    """Waits for each client of a round: FedSaC's plain loop waits for the eigenvectors of one client at a time.

    FedKD waits for those of each matrix of its network, on the server too.
    """
    if preset.startswith("fedkd"):
        return 6 if engine == "looped" else 2
    return int(preset.startswith("fedsac") and engine == "looped")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("preset", FEW)
def test_a_cohort_of_sixteen_waits_as_often_as_one_of_four(preset: str, engine: str) -> None:
    subject = Subject.of(preset)
    for cohort in (4, 16):
        check(trial(federated(subject, "mlp", cohort), ENGINES[engine]), more=of_clients(preset, engine) * cohort)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(preset: str, kind: str, engine: str) -> None:
    subject = Subject.of(preset)
    check(trial(lambda device: subject.toy(kind, device=device), ENGINES[engine]), more=4 * of_clients(preset, engine))


NETWORKS: dict[str, tuple[tuple[int, int, int], dict[str, object]]] = {
    **dict.fromkeys(["lenet5", "cnn5", "simple_cnn", "fedrema_alexnet", "resnet9"], ((3, 32, 32), {})),
    **dict.fromkeys(["resnet18", "mobilenet_v2", "squeezenet"], ((3, 32, 32), {"pretrained": False})),
    "fedrema_cnn": ((1, 28, 28), {}),
    "cub_cnn": ((3, 64, 64), {}),
    "textcnn": ((1, 1, 14), {"vocabulary": 9}),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network(name: str, engine: str) -> None:
    shape, fields = NETWORKS[name]
    model = MODELS.build({"name": name, **fields})

    def toy(device: torch.device) -> Setup:
        data = federation((16, 16), shape, classes=10, device=device)
        return setup(FedAvg(), data, model, rounds=2, epochs=1, optimizer=OptimizerConfig(lr=0.01))

    check(trial(toy, ENGINES[engine]))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("preset", FEW)
def test_a_whole_run_is_written(preset: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its matrix, models, recorded arrays, checkpoint and scores of unseen clients come from the device."""
    monkeypatch.setattr(building, "pick_device", lambda _: DEVICE)
    monkeypatch.setattr(hardware, "free_bytes", lambda _: 1e9)
    chosen = ["dataset=digits", "partition=dir0.5", "partition.num_clients=5", "model=mlp", f"method={preset}"]
    chosen += [
        "protocol=quick",
        "protocol.rounds=2",
        "protocol.cohort=4",
        "protocol.unseen=1",
        "protocol.local.epochs=1",
    ]
    chosen += ["protocol.test.val_fraction=0.2", "protocol.metrics=[auroc,nll]", "protocol.optimizer.state=kept"]
    chosen += ["checkpoint.rounds=1", "save_models=true"]
    recorded = {"cka", "model_cosine", "update_cosine", "similarity"} if preset in ("fedavg", "pfedgraph") else set()
    chosen += [f"record=[{','.join(recorded)}]"]
    run = resolve(compose([*chosen, f"hardware.engine={engine}", f"runs_dir={tmp_path}"]))
    with Accelerator():
        made = execution.execute(run)
    assert recorded == {name.split("/")[1] for name in made.arrays if "/" in name}
    assert (made.W is None) == (preset not in WITH_MATRIX)
    assert made.models
    assert made.row["acc_unseen_1"] is not None or made.row["unseen_note"]


@dataclass(frozen=True)
class Noisy(FedRep):
    """FedRep, two stages with different mini-batches, with noise that the server has a say in."""

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Read off the message: not known before it is sent."""
        return {"scale": client.message["fc.0.bias"].sum().expand(steps) + 1}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """FedRep's, scaled."""
        return batch.noise["scale"] * super().loss(work, client, batch)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_draw_may_read_the_message(engine: str) -> None:
    def toy(device: torch.device) -> Setup:
        data = federation((9, 5, 13), device=device)
        return setup(Noisy(), data, MLP(hidden=(3,)), rounds=3, epochs=1, cohort=2)

    found = trial(toy, ENGINES[engine])
    assert found.apart == 0
    check(found)


@dataclass(frozen=True)
class Faulty(FedAvg):
    """FedAvg with something in its loss that a GPU minds."""

    fault: str = ""

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """FedAvg's."""
        FAULTS[self.fault](batch.x)
        return super().loss(work, client, batch)


@dataclass(frozen=True)
class Reading(FedAvg):
    """A server that reads a number for every client."""

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """FedAvg's."""
        for row in next(iter(uploads.values())):
            row.sum().item()
        return super().aggregate(server, uploads, cohort)


FAULTS: dict[str, Callable[[Tensor], Any]] = {
    "a tensor of the host": lambda x: x + torch.ones(x.shape[1:]),
    "a number of the host in a list": lambda x: torch.stack([x.sum(), torch.zeros((), dtype=x.dtype)]),
    "a list of both for one kernel": lambda x: torch._foreach_add([x], [torch.ones(x.shape)]),
    "a generator of the host": lambda x: torch.rand(3, generator=torch.Generator(), device=x.device),
    "numpy": lambda x: x.detach().numpy(),
    "an index of the host for a kernel": lambda x: x.index_select(0, torch.zeros(1, dtype=torch.int64)),
    "a read number": lambda x: float(x.sum()),
    "a truth": lambda x: bool(x.sum() > 0),
    "a list": lambda x: x.detach().tolist(),
    "a copy to the host": lambda x: x.detach().cpu(),
    "a copy from the host": lambda x: x + torch.zeros(1, dtype=x.dtype).to(x.device),
    "a number put on the device": lambda x: torch.tensor(1.0, device=x.device),
    "a mask": lambda x: x[x > 0],
    "places of a mask": lambda x: x.nonzero(),
    "an index of the host": lambda x: x[torch.zeros(1, dtype=torch.int64)],
    "a count": lambda x: torch.bincount((x > 0).long().flatten()),
}
REFUSED = list(FAULTS)[:6]


def toy(method: FedAvg, device: torch.device) -> Setup:
    return setup(method, federation((9, 9), device=device), MLP(hidden=(3,)), rounds=2, epochs=1)


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cuda_refuses_is_refused(fault: str) -> None:
    with Accelerator():
        chosen = toy(Faulty(fault=fault), DEVICE)
        with pytest.raises(HookError, match=r"loss failed in round 1.*Misplaced"):
            simulate(chosen, LoopedTrainer(chosen))


@pytest.mark.parametrize("fault", sampled([fault for fault in FAULTS if fault not in REFUSED], every=5))
def test_what_makes_the_host_wait_is_counted(fault: str) -> None:
    assert trial(lambda device: toy(Faulty(fault=fault), device), LoopedTrainer).step > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_wait_for_every_client_is_counted(engine: str) -> None:
    rounds = [trial(federated(Subject(Reading()), "mlp", cohort), ENGINES[engine]).round for cohort in (4, 16)]
    assert rounds[1] == rounds[0] + 12


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch knows no CUDA kernels")
def test_an_operation_without_a_cuda_kernel_is_refused() -> None:
    with Accelerator(), pytest.raises(Misplaced, match="no CUDA kernel"):
        torch.ones(3, 3, device=DEVICE).to_mkldnn()


def test_what_a_gpu_takes_is_taken_and_nothing_waits() -> None:
    with Accelerator() as gpu:
        x = torch.ones(3, 2, device=DEVICE)
        (x + 1) * torch.tensor(2.0)  # a number of the host in arithmetic
        x.masked_fill(x > 0, 2.0)
        x[x > 0] = 2.0
        torch.zeros(3).pin_memory().to(DEVICE, non_blocking=True)
        column = torch.ones(1, 3, device=DEVICE)
        assert column.squeeze_(0).shape == (3,)
        assert not gpu.waits
        assert x.sum().item() == 12
        assert gpu.waits == {"": {"_local_scalar_dense": 1}}
