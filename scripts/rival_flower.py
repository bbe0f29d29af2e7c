"""FedAvg in Flower's simulation on the same work as fedbench: docs/hardware.md says how to install both.

    python scripts/rival_flower.py [W1 W2] [--processes 2] [--out results/bench]

The apps are written as Flower's documentation does it, with one difference in its favour: a client process loads and
normalises all data once, at its first call, and gathers batches from tensors instead of a data loader.
"""

from __future__ import annotations

import functools
import itertools
import time

import torch
from benchmarks import rivals
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from fedbench.engine.setup import Setup

client_app = ClientApp()


@functools.cache
def loaded(name: str, device: str) -> tuple[Setup, nn.Module, list[tuple[Tensor, Tensor]]]:
    """(the work, the network, each client's samples), once a process."""
    torch.set_num_threads(1)
    setup = rivals.setup_of(name, device)
    federation = setup.federation
    data = [federation.gather(federation.indices("train", i)) for i in range(federation.clients)]
    return setup, rivals.network(setup), data


@client_app.train()
def fit(message: Message, context: Context) -> Message:
    """A client's local epochs."""
    config = message.content["config"]
    setup, net, data = loaded(config["name"], config["device"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data[int(context.node_config["partition-id"])]
    local, chosen = setup.protocol.local, setup.protocol.optimizer
    optimizer = torch.optim.SGD(net.parameters(), lr=chosen.lr, momentum=chosen.momentum)
    steps = 0
    for _ in range(local.epochs):
        for batch in torch.randperm(len(y), device=y.device).split(local.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
            steps += 1
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def train(name: str, device: str, rounds: int, processes: int) -> rivals.Answer:
    """All rounds, in `processes` client processes."""
    setup, net, _ = loaded(name, device)
    clients = setup.federation.clients
    cohort = setup.protocol.cohort_size(clients)
    moments: list[float] = []
    steps: list[int] = []
    server_app = ServerApp()

    def count(records: list[RecordDict], _: str) -> MetricRecord:
        steps.extend(int(each["metrics"]["steps"]) for each in records)
        return MetricRecord({"steps": sum(steps)})

    def tick(_: int, arrays: ArrayRecord) -> None:
        moments.append(time.perf_counter())
        if len(moments) == rounds + 1:
            net.load_state_dict(arrays.to_torch_state_dict())

    @server_app.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = FedAvg(
            fraction_train=cohort / clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=clients,
            train_metrics_aggr_fn=count,
        )
        config = ConfigRecord({"name": name, "device": device})
        arrays = ArrayRecord(net.state_dict())
        strategy.start(grid, arrays, num_rounds=rounds, train_config=config, evaluate_fn=tick)

    resources = {"num_cpus": 1, "num_gpus": 0.0 if device == "cpu" else 1 / processes}
    backend = {"client_resources": resources, "init_args": {"num_cpus": processes}}
    run_simulation(server_app, client_app, num_supernodes=clients, backend_config=backend)
    seconds = [after - before for before, after in itertools.pairwise(moments)]
    return rivals.Answer(seconds, sum(steps), rivals.accuracy(setup, net))


if __name__ == "__main__":
    # Imported again under its name: Ray would copy what `__main__` holds to the clients at every call, their data too.
    import rival_flower

    rivals.main("Flower", "flwr", rival_flower.train)
