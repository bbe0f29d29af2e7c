"""W1-W4: rounds of local training by every engine, by a loop as one would write it by hand, and by one merged model.

STEPS: the papers' steps, whose rounds are of as many whole batches as one likes.

All take turns in one process, several times over, on the same batches, and medians are compared. Before anything is
timed every engine's result is compared with the hand-written loop's.
"""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.config.compose import compose
from fedbench.config.schema import HardwareConfig
from fedbench.core.trees import Tree
from fedbench.data.datasets.synthetic import Synthetic
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.hardware import pick_trainer, set_precision
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.schedule import batches
from fedbench.engine.setup import Setup, drawn
from fedbench.engine.simulation import Simulation
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer, available_workers
from fedbench.runs.config import resolve

TOLERANCE = 1e-9  # of a parameter after a client's round in float64, engine against hand-written loop
PATIENCE = 300.0  # seconds that a process may take for all its rounds
TF32 = "tf32"  # the stacked engine, multiplying in TensorFloat-32
UNSCORED = (
    "method=fedavg",
    "protocol.rounds=1000",
    "protocol.eval_every=1000",
    "protocol.test.val_fraction=0.0",
)
SGD = ("protocol.optimizer.lr=0.01", "protocol.optimizer.momentum=0.0")

Round = Callable[[], int]
"""Performs a round; returns the number of client-steps."""


@dataclass(frozen=True)
class Workload:
    """A round to be timed, described by the overrides of an ordinary run."""

    name: str
    what: str
    overrides: tuple[str, ...]
    sizes: tuple[int, ...]  # training samples of each client
    shape: tuple[int, int, int]  # [C, H, W]
    small_cohort: int | None = None  # clients a round with --quick
    test: int = 10  # test samples, where accuracies are compared too

    def setup(self, device: torch.device, *, quick: bool = False, dtype: torch.dtype = torch.float32) -> Setup:
        """Return data, network and method; procedural images stand for the data, whose values cost nothing."""
        cohort = [f"protocol.cohort={self.small_cohort}"] if quick and self.small_cohort else []
        config = resolve(compose([*self.overrides, *UNSCORED, *cohort]))
        channels, height, _ = self.shape
        total = sum(self.sizes)
        dataset = Synthetic(train=total, test=self.test, channels=channels, size=height).load()
        order = np.random.default_rng(0).permutation(total)
        bounds = itertools.pairwise(np.cumsum([0, *self.sizes]))
        owned = [np.sort(order[a:b]) for a, b in bounds]
        none = [np.zeros(0, dtype=np.int64) for _ in owned]
        tests = [np.arange(total, total + 10) for _ in owned]
        partition = Partition("bench", 0, dataset.name, 10, owned, none, tests)
        federation = Federation(dataset, partition, device, dtype)
        return Setup(config.method, config.model.task(self.shape, 10), federation, config.protocol, 0)


def _workloads() -> dict[str, Workload]:
    small, grey = (3, 32, 32), (1, 28, 28)
    quick = "protocol=quick"
    lenet = ("model=lenet5", quick, "protocol.local.epochs=5", "protocol.local.batch_size=32", *SGD)
    resnet = ("model=resnet18", "model.pretrained=false", quick, "protocol.cohort=all", *SGD)
    cnn = ("model=fedrema_cnn", quick, "protocol.cohort=all", "protocol.local.epochs=5", *SGD)
    found = [
        Workload(
            "W1",
            "LeNet5, 3 x 32 x 32, 100 clients of 500, 10 a round, 5 epochs, batch 32",
            (*lenet, "protocol.cohort=10"),
            (500,) * 100,
            small,
            2,
        ),
        Workload(
            "W2",
            "FedCollab's label shift: MLP 784-200-200-10, ten clients of 2100 and ten of 14, 1 epoch, batch 32",
            ("model=mlp", "protocol=fedcollab_label_shift"),
            (2100,) * 10 + (14,) * 10,
            grey,
        ),
        Workload(
            "W3",
            "ResNet-18, 3 x 32 x 32, 10 clients of 500, all a round, 1 epoch, batch 32",
            (*resnet, "protocol.local.epochs=1", "protocol.local.batch_size=32"),
            (500,) * 10,
            small,
            2,
        ),
        Workload(
            "W4",
            "FedAvg's CNN (FedReMa's), 1 x 28 x 28, 100 clients of 500, all a round, 5 epochs, batch 50",
            (*cnn, "protocol.local.batch_size=50"),
            (500,) * 100,
            grey,
            2,
        ),
    ]
    return {each.name: each for each in found}


WORKLOADS = _workloads()


def _steps() -> dict[str, Workload]:
    """Steps of the papers, those first that tell most: all clients that train at once there, each on a whole batch.

    Networks and protocols are those of conf/table; but no image is cropped or flipped, as by hand none is.
    """
    small, grey, tiny = (3, 32, 32), (1, 28, 28), (3, 64, 64)
    whole = ("protocol.cohort=all", "protocol.augment=[]", "protocol.report=last", "protocol.per_client=false")

    def step(
        who: str, network: str, protocol: str, clients: int, batch: int, shape: tuple[int, int, int], *others: str
    ) -> Workload:
        overrides = (f"model={network}", f"protocol={protocol}", *whole, *others)
        return Workload(who, f"{network}, {clients} clients of {batch}", overrides, (8 * batch,) * clients, shape)

    found = [
        step("FedSaC", "lenet5", "fedsac", 10, 64, small),
        step("FedReMa-CNN", "fedrema_cnn", "fedrema", 20, 100, grey),
        step("W1", "lenet5", "quick", 10, 32, small, *SGD),
        step("pFedSim", "lenet5_bn", "pfedsim", 10, 32, small),
        step("SosicFL", "simple_cnn", "sosicfl_simplecnn", 30, 50, small),
        step("FedCollab", "cnn5", "fedcollab_feature_shift", 20, 32, small),
        step("FedReMa-AlexNet", "fedrema_alexnet", "fedrema", 20, 100, small),
        step("ResNet-18", "resnet18", "sosicfl_resnet18", 10, 32, tiny, "model.pretrained=false"),
        step("W4", "fedrema_cnn", "quick", 100, 50, grey, "protocol.local.batch_size=50", *SGD),
        step("W2", "mlp", "fedcollab_label_shift", 20, 32, grey),
    ]
    return {each.name: each for each in found}


STEPS = _steps()


def of_steps(setup: Setup, steps: int, cohort: str = "all") -> Setup:
    """`setup` with rounds of `steps` local steps, and with a network of its own: engines set how it convolves."""
    local = replace(setup.protocol.local, epochs=None, iterations=steps)
    return replace(setup, protocol=replace(setup.protocol, local=local, cohort=cohort), task=copy.copy(setup.task))


# ------------------------------------------------------------------------------------------------ by hand


def schedule_of(setup: Setup, ids: Tensor, round_: int) -> list[list[Tensor]]:
    """For each client the sample indices of every local step, as any loader would have prepared them."""
    found = []
    for client in ids.tolist():
        generator = torch.Generator().manual_seed(1000 * round_ + client)
        owned = setup.federation.indices("train", client)
        steps = batches(len(owned), setup.protocol.local, Stage(), generator)
        found.append([owned[positions.to(owned.device)] for positions in steps])
    return found


def fresh_model(setup: Setup) -> nn.Module:
    """Return the network as an ordinary module, on the device, from a fixed seed."""
    return module_with(setup, setup.task.init(torch.Generator().manual_seed(0)))


def module_with(setup: Setup, weights: Tree) -> nn.Module:
    """Return the network with these weights as an ordinary module that trains, on the device."""
    model: nn.Module = setup.task.fresh()
    model.load_state_dict({name: weights[name] for name in model.state_dict()}, strict=True)
    return model.to(setup.federation.device).train().requires_grad_(True)


def descend(setup: Setup, model: nn.Module, steps: list[Tensor]) -> int:
    """Train `model` in place on the samples of each step; returns the number of steps."""
    config = setup.protocol.optimizer
    rates = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    optimizer = torch.optim.SGD(model.parameters(), **rates)
    for indices in steps:
        x, y = setup.federation.gather(indices)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
    return len(steps)


def plain_round(setup: Setup, model: nn.Module, ids: Tensor, steps: list[list[Tensor]]) -> int:
    """FedAvg's round by hand, `model` updated in place: nn.Module, torch.optim, one client after another, a mean."""
    total = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in model.state_dict().items()}
    sizes = [setup.federation.size(client) for client in ids.tolist()]
    count = 0
    for size, order in zip(sizes, steps, strict=True):
        local = copy.deepcopy(model)
        count += descend(setup, local, order)
        for name, leaf in local.state_dict().items():
            total[name] += leaf.to(torch.float64) * (size / sum(sizes))
    model.load_state_dict({name: leaf.to(model.state_dict()[name].dtype) for name, leaf in total.items()})
    return count


def merged_round(setup: Setup, model: nn.Module, steps: list[list[Tensor]]) -> int:
    """One model on the merged batch of all clients that still have one: the limit that stacking can reach."""
    active = [[order[step] for order in steps if step < len(order)] for step in range(max(map(len, steps)))]
    descend(setup, model, [torch.cat(each) for each in active])
    return sum(map(len, active))


# -------------------------------------------------------------------------------------------- contestants


def trainers(setup: Setup) -> dict[str, Trainer]:
    """The engines; on a GPU the stacked one step by step, captured, and captured in TensorFloat-32."""
    found: dict[str, Trainer] = {"looped": LoopedTrainer(setup)}
    device = setup.federation.device.type
    if device == "cpu" and available_workers() > 1:
        found["workers"] = WorkersTrainer(setup, available_workers())
    found["stacked"] = pick_trainer(setup, HardwareConfig(engine="stacked", graph="off"))
    if device == "cuda":
        found |= {name: pick_trainer(setup, HardwareConfig(engine="stacked")) for name in ("captured", TF32)}
    return found


def contestants(setup: Setup, engines: Mapping[str, Trainer]) -> dict[str, Callable[[int], Round]]:
    """By name, what makes a round ready, its batches on the device, which is not timed: given its number, the round."""
    found = {name: _engine(setup, trainer, tf32=name == TF32) for name, trainer in engines.items()}
    plain, merged = fresh_model(setup), fresh_model(setup)

    def by_hand(repeat: int) -> Round:
        ids = setup.draw_cohort(Clock(repeat, setup.protocol.rounds))
        return partial(plain_round, setup, plain, ids, schedule_of(setup, ids, repeat))

    def in_one(repeat: int) -> Round:
        ids = setup.draw_cohort(Clock(repeat, setup.protocol.rounds))
        return partial(merged_round, setup, merged, schedule_of(setup, ids, repeat))

    return {**found, "plain": by_hand, "merged": in_one}


def _engine(setup: Setup, trainer: Trainer, *, tf32: bool = False) -> Callable[[int], Round]:
    simulation = Simulation(setup, trainer)
    state = simulation.begin()

    def ready(repeat: int) -> Round:
        state.round = repeat
        ids = setup.draw_cohort(Clock(repeat, setup.protocol.rounds)).tolist()

        def round_() -> int:
            set_precision(tf32=tf32)
            simulation.step(state)
            set_precision(tf32=False)
            return sum(map(setup.steps, ids))

        return round_

    return ready


def differences(setup: Setup) -> dict[str, float]:
    """By engine, the largest difference of a parameter after two clients' local work from a loop by hand.

    In float64, as rounding grows along the steps: after ResNet-18's sixteen in float32 two right programs differ by
    more than a wrong one need to.
    """
    found = {}
    for name, trainer in trainers(setup).items():
        try:
            found[name] = _difference(setup, trainer)
        finally:
            trainer.close()
    return found


def _difference(setup: Setup, trainer: Trainer) -> float:
    clock = Clock(0, setup.protocol.rounds)
    ids = setup.draw_cohort(clock)[:2]
    with torch.no_grad():
        server, _ = setup.method.init(setup.task, setup.population, torch.Generator().manual_seed(0))
        message = setup.method.send(setup.federation.placed(server), setup.cohort(ids, clock))
    outcome = trainer.train(ids, message, {}, clock)
    (stage,) = setup.method.stages(setup.protocol.local, clock)
    gaps = []
    for row, client in enumerate(ids.tolist()):
        model = setup.task.fresh().to(setup.federation.device, setup.federation.dtype)
        model = model.train().requires_grad_(True)
        model.load_state_dict({name: message[name][row] for name in model.state_dict()})
        order, _ = drawn(setup, client, stage, setup.client(client, {}, {}, clock), "batches")
        owned = setup.federation.indices("train", client)
        descend(setup, model, [owned[positions.to(owned.device)] for positions in order])
        for name, leaf in model.state_dict().items():
            gaps.append(float((outcome.uploads[name][row] - leaf).abs().max()))
    return max(gaps)


# ------------------------------------------------------------------------------------------------- timing


def run(workload: Workload, device: torch.device, repeats: int, *, quick: bool) -> dict[str, Any]:
    """Client-steps a second of the engines, the plain loop and the merged batch, and their ratios.

    Raises:
        AssertionError: an engine trains something else than the loop by hand, or another number of steps.
    """
    difference = differences(workload.setup(device, quick=quick, dtype=torch.float64))
    if wrong := {name: gap for name, gap in difference.items() if not gap <= TOLERANCE}:
        raise AssertionError(f"{workload.name}: engines differ from the plain loop: {wrong}")
    if device.type == "cuda":  # what follows has the memory to itself, and is all that is measured
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    setup = workload.setup(device, quick=quick)
    engines = trainers(setup)
    ready = contestants(setup, engines)
    taken: dict[str, list[tuple[float, int]]] = {name: [] for name in ready}
    try:
        for repeat in range(repeats + 1):  # the first is a warm-up
            for name, contestant in ready.items():
                timing = timed(contestant(repeat), device)
                taken[name] += [timing] if repeat else []
    finally:
        for trainer in engines.values():
            trainer.close()
    done = {name: timings[0][1] for name, timings in taken.items()}
    if len(set(done.values())) != 1:
        raise AssertionError(f"{workload.name}: unequal work: {done}")
    rates = {name: [count / seconds for seconds, count in timings] for name, timings in taken.items()}
    rate = {name: statistics.median(values) for name, values in rates.items()}
    stacked = max(rate[name] for name in ("stacked", "captured") if name in rate)
    return {
        "workload": workload.name,
        "what": workload.what,
        "client_steps": done["plain"],
        "rate": {name: round(value, 1) for name, value in rate.items()},
        "spread": {name: [round(min(each), 1), round(max(each), 1)] for name, each in rates.items()},
        "best": max((name for name in engines if name != TF32), key=lambda name: rate[name]),
        "vs_plain": {name: round(rate[name] / rate["plain"], 2) for name in engines},
        "stacking_efficiency": round(stacked / rate["merged"], 2),
        "largest_difference": difference,
        "peak_mib": _peak(device),
        "repeats": repeats,
        "quick": quick and workload.small_cohort is not None,
    }


def timed(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """(seconds of one call of `work` until the device is done, what it returns)."""
    gc.collect()
    wait(device)
    begin = time.perf_counter()
    found = work()
    wait(device)
    return time.perf_counter() - begin, found


def wait(device: torch.device) -> None:
    """Return when the GPU, if it is one, has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak(device: torch.device) -> int:
    """Largest memory of this process and its largest child, or of the GPU, in MiB."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated() / 2**20)
    kib = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return kib // 1024


def two_processes(name: str, repeats: int) -> float:
    """How much two plain loops at once do against one: what worker processes can reach here at most.

    Virtual cores may be two threads of one physical core; then it is far from 2.
    """
    found = (at_once(_two_clients, processes, repeats, name) for processes in (1, 2))
    alone, both = (statistics.median(itertools.chain.from_iterable(each)) for each in found)
    return round(2 * alone / both, 2)


def _two_clients(name: str) -> tuple[Callable[[int], Round], torch.device]:
    """Rounds of two clients by hand, in a process of their own."""
    device = torch.device("cpu")
    setup = WORKLOADS[name].setup(device)
    model = fresh_model(setup)
    ids = setup.draw_cohort(Clock(0, setup.protocol.rounds))[:2]
    return lambda repeat: partial(plain_round, setup, model, ids, schedule_of(setup, ids, repeat)), device


def at_once(work: Callable[..., Any], processes: int, repeats: int, *given: Any) -> list[list[float]]:
    """For each of several processes the seconds of its rounds, each begun when all are ready, after one to warm up.

    `work(*given)`, called in each of them, returns what makes a round ready, and the device.

    Raises:
        queue.Empty: a process died, or took longer than `PATIENCE`.
    """
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(processes), context.Queue()
    options = (work, repeats, barrier, found, given)
    started = [context.Process(target=_in_turn, args=options) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        return [found.get(timeout=PATIENCE) for _ in started]
    finally:
        for process in started:
            process.terminate()


def _in_turn(work: Callable[..., Any], repeats: int, barrier: Barrier, found: Any, given: Any) -> None:
    torch.set_num_threads(1)
    ready, device = work(*given)
    seconds = []
    for repeat in range(repeats + 1):
        round_ = ready(repeat)
        barrier.wait()
        seconds.append(timed(round_, device)[0])
    found.put(seconds[1:])
