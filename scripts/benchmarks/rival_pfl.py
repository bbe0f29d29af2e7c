"""FedAvg in pfl (PyTorch), run by the interpreter of pfl's environment, alone or under torch.distributed.run.

    python rival_pfl.py WORK.pt ANSWER.json DEVICE

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
from rival_work import Answer, Work, load
from torch import Tensor, nn


def share_gpu() -> None:
    """Let more ranks than GPUs run: NCCL, which pfl asks for, refuses two on one GPU; gloo does not.

    Called before pfl is imported, which reads LOCAL_RANK and joins the group.
    """
    if "LOCAL_RANK" not in os.environ:
        return
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


def train(work: Work, device: str) -> Answer:
    """All rounds."""
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

    seconds: list[float] = []

    class Stopwatch(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Metrics:
            self.begin = time.perf_counter()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            if device != "cpu":
                torch.cuda.synchronize()
            now = time.perf_counter()
            seconds.append(now - self.begin)
            self.begin = now
            return False, Metrics()

    rounds, cohort = work.cohorts.shape
    classifier = Classifier(work.net)
    model = PyTorchModel(
        classifier,
        functools.partial(torch.optim.SGD, momentum=work.momentum),
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    users = {i: PyTorchTensorDataset(work.client(i), user_id=str(i)) for i in range(work.clients)}
    order = itertools.cycle(work.cohorts.flatten().tolist())
    data = FederatedDataset(users.__getitem__, lambda: next(order))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, rounds, cohort, None),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=work.batch_size,
            local_num_epochs=work.epochs,
            local_learning_rate=work.lr,
        ),
        callbacks=[Stopwatch()],
    )
    steps = torch.tensor(classifier.steps)
    if torch.distributed.is_initialized():
        steps = steps.to(device)
        torch.distributed.all_reduce(steps)
    return Answer(seconds, int(steps), work.accuracy(classifier.net))


def main(path: str, answer: str, device: str) -> None:
    """Load the work, train, and write the answer from the first process."""
    torch.set_num_threads(1)
    if device != "cpu":
        share_gpu()
    found = train(load(path, device), device)
    if os.environ.get("RANK", "0") == "0":
        found.write(answer)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
