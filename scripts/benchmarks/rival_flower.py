"""FedAvg in Flower's simulation, run by the interpreter of Flower's environment.

    python rival_flower.py WORK.pt ANSWER.json DEVICE ACTORS

The apps are written as Flower's documentation does it, with one difference in its favour: a client process loads and
normalises all data once, at its first call, and gathers batches from tensors instead of a data loader.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from rival_work import Answer, Work, load

client_app = ClientApp()


@functools.cache
def loaded(path: str, device: str) -> Work:
    """The work, once a process."""
    torch.set_num_threads(1)
    return load(path, device)


@client_app.train()
def fit(message: Message, context: Context) -> Message:
    """A client's local epochs."""
    config = message.content["config"]
    work = loaded(config["work"], config["device"])
    work.net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = work.client(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(work.net.parameters(), lr=work.lr, momentum=work.momentum)
    steps = 0
    for _ in range(work.epochs):
        for batch in torch.randperm(len(y), device=y.device).split(work.batch_size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(work.net(x[batch]), y[batch]).backward()
            optimizer.step()
            steps += 1
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(work.net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def train(path: str, device: str, actors: int) -> Answer:
    """All rounds, in `actors` client processes."""
    work = loaded(path, device)
    rounds, cohort = work.cohorts.shape
    moments: list[float] = []
    steps: list[int] = []
    server_app = ServerApp()

    def count(records: list[RecordDict], _: str) -> MetricRecord:
        steps.extend(int(each["metrics"]["steps"]) for each in records)
        return MetricRecord({"steps": sum(steps)})

    def tick(_: int, arrays: ArrayRecord) -> None:
        moments.append(time.perf_counter())
        if len(moments) == rounds + 1:
            work.net.load_state_dict(arrays.to_torch_state_dict())

    @server_app.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = FedAvg(
            fraction_train=cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=work.clients,
            train_metrics_aggr_fn=count,
        )
        strategy.start(
            grid,
            ArrayRecord(work.net.state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"work": path, "device": device}),
            evaluate_fn=tick,
        )

    resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0.0 if device == "cpu" else 1 / actors}
    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.clients,
        backend_config={"client_resources": resources, "init_args": {"num_cpus": actors}},
    )
    seconds = [after - before for before, after in itertools.pairwise(moments)]
    return Answer(seconds, sum(steps), work.accuracy(work.net))


if __name__ == "__main__":
    # Imported again under its name: Ray would copy what `__main__` holds to the clients at every call, their data too.
    import rival_flower

    rival_flower.train(sys.argv[1], sys.argv[3], int(sys.argv[4])).write(sys.argv[2])
