"""A GPU's rules of placement, without one: what is refused, and what makes the host wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Cohort
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import HookError
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import MLP
from fedbench.testing.toys import Subject, federation, setup, simulate
from tests.helpers.accelerator import DEVICE, Accelerator, Misplaced
from tests.helpers.pretended import ENGINES, federated, trial


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


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in REFUSED])
def test_what_makes_the_host_wait_is_counted(fault: str) -> None:
    assert trial(lambda device: toy(Faulty(fault=fault), device), LoopedTrainer).step > 0


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
        assert not gpu.waits
        assert x.sum().item() == 12
        assert gpu.waits == {"": {"_local_scalar_dense": 1}}
