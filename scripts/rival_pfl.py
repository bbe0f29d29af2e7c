"""FedAvg in pfl (PyTorch) on the same work as fedbench: docs/hardware.md says how to install both.

    python scripts/rival_pfl.py [W1 W2] [--processes 2] [--out results/bench]

Users' data are tensors on the device, made once. pfl cuts a user's batches once and keeps them, so unlike the others
it neither shuffles nor gathers; that is left as it is shipped.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from typing import Any

import torch
from benchmarks import rivals
from torch import Tensor, nn

from fedbench.engine.contract import Clock


def share_gpu() -> None:
    """Let more ranks than GPUs run: NCCL, which pfl asks for, refuses two on one GPU; gloo does not.

    Called before pfl is imported, which reads LOCAL_RANK and joins the group.
    """
    ranks, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) % gpus)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if ranks > gpus:
        begin = torch.distributed.init_process_group
        torch.distributed.init_process_group = lambda **_: begin(backend="gloo")


class Classifier(nn.Module):
    """The network as pfl wants it: with `loss` and `metrics`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.steps = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of a batch; called once a local step."""
        self.steps += 1
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Number of samples: pfl wants a metric, and asks for it in round 0 alone."""
        from pfl.metrics import Weighted

        return {"samples": Weighted(len(y), 1)}


def train(name: str, device: str, rounds: int, _: int) -> rivals.Answer:
    """All rounds, in the ranks that torch.distributed.run started."""
    if device != "cpu" and "LOCAL_RANK" in os.environ:
        share_gpu()
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    setup = rivals.setup_of(name, device)
    federation, local, chosen = setup.federation, setup.protocol.local, setup.protocol.optimizer
    moments: list[float] = []

    class Stopwatch(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Metrics:
            moments.append(time.perf_counter())
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            if device != "cpu":
                torch.cuda.synchronize()
            moments.append(time.perf_counter())
            return False, Metrics()

    classifier = Classifier(rivals.network(setup))
    model = PyTorchModel(
        classifier,
        functools.partial(torch.optim.SGD, momentum=chosen.momentum),
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    samples = [federation.gather(federation.indices("train", i)) for i in range(federation.clients)]
    users = [PyTorchTensorDataset(each, user_id=str(i)) for i, each in enumerate(samples)]
    cohorts = [setup.draw_cohort(Clock(number, setup.protocol.rounds)).tolist() for number in range(rounds)]
    order = itertools.cycle(itertools.chain(*cohorts))
    data = FederatedDataset(users.__getitem__, lambda: next(order))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, rounds, len(cohorts[0]), None),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=local.batch_size, local_num_epochs=local.epochs, local_learning_rate=chosen.lr
        ),
        callbacks=[Stopwatch()],
    )
    steps = torch.tensor(classifier.steps)
    if torch.distributed.is_initialized():
        steps = steps.to(device)
        torch.distributed.all_reduce(steps)
        torch.distributed.destroy_process_group()
    if os.environ.get("RANK", "0") != "0":
        sys.exit()  # the first rank answers
    seconds = [after - before for before, after in itertools.pairwise(moments)]
    return rivals.Answer(seconds, int(steps), rivals.accuracy(setup, classifier.net))


if __name__ == "__main__":
    rivals.main("pfl", "pfl", train)
