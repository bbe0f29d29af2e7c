"""protocol.optimizer.schedule: the learning rate over a run is torch's, by every engine alike."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from fedbench.config import groups
from fedbench.config.compose import compose
from fedbench.config.schema import LocalConfig, OptimizerConfig, ScheduleConfig, WorkConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError, FedbenchError, warn_once
from fedbench.core.trees import Tree
from fedbench.engine import graphs
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.optim import factors
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.finetune import Finetune
from fedbench.methods.local import Local
from fedbench.methods.pfedme import PFedMe
from fedbench.methods.scaffold import Scaffold
from fedbench.runs import building, execution
from fedbench.runs.config import resolve
from tests.engine.test_optimizer_state import ENGINES, as_looped, network
from tests.helpers.tiers import sampled, tiered
from tests.methods.toys import adapted, close, federation, gap, models, samples, setup, simulate, steps

STEP = ScheduleConfig(name="step", every=2, gamma=0.5, warmup=1)
COSINE = ScheduleConfig(name="cosine", final=0.1)
BY_STEP = ScheduleConfig(name="cosine", by="step", warmup=3)
SGD = OptimizerConfig(lr=0.1, momentum=0.9, schedule=COSINE)
ADAMW = OptimizerConfig(name="adamw", lr=0.01, weight_decay=0.3, schedule=BY_STEP, state="kept")


def by_torch(schedule: ScheduleConfig, total: int, optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    """The scheduler as a user of torch would write it."""
    main: lr_scheduler.LRScheduler = lr_scheduler.ConstantLR(optimizer, factor=1)
    if schedule.name == "step":
        main = lr_scheduler.StepLR(optimizer, step_size=schedule.every or 0, gamma=schedule.gamma)
    if schedule.name == "cosine":
        lr = optimizer.param_groups[0]["initial_lr"]
        main = lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - schedule.warmup, eta_min=schedule.final * lr)
    if not schedule.warmup:
        return main
    rise = lr_scheduler.LinearLR(optimizer, start_factor=1 / (schedule.warmup + 1), total_iters=schedule.warmup)
    return lr_scheduler.SequentialLR(optimizer, [rise, main], milestones=[schedule.warmup])


@pytest.mark.parametrize("schedule", [STEP, COSINE, replace(COSINE, warmup=4), replace(STEP, warmup=0), BY_STEP])
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_the_rates_are_those_of_a_plain_loop_of_torch(schedule: ScheduleConfig) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    scheduler = by_torch(schedule, 11, optimizer)
    found = []
    for _ in range(11):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert (0.2 * factors(schedule, 11)).tolist() == pytest.approx(found, rel=1e-12)
    assert len({*found}) > 3


def test_the_rates_in_numbers() -> None:
    assert factors(STEP, 7).tolist() == pytest.approx([0.5, 1, 1, 0.5, 0.5, 0.25, 0.25])
    assert factors(ScheduleConfig(name="cosine"), 4).tolist() == pytest.approx([1, 0.853553, 0.5, 0.146447], rel=1e-5)
    assert factors(ScheduleConfig(warmup=3), 5).tolist() == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert factors(ScheduleConfig(warmup=3), 2).tolist() == pytest.approx([0.25, 0.5]), "over before it is warm"


@pytest.mark.parametrize("config", [replace(SGD, state="kept"), ADAMW], ids=["sgd by round", "adamw by step"])
def test_a_lone_client_trains_as_with_torch_s_optimiser_and_scheduler(config: OptimizerConfig) -> None:
    chosen = setup(Local(), federation((9,)), rounds=4, epochs=2, batch=50, optimizer=config)
    x, y = samples(chosen, 0)
    net, leaves = network(chosen)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if config.name == "adamw":
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.3)
    by_step = config.schedule.by == "step"
    scheduler = by_torch(config.schedule, 8 if by_step else 4, optimizer)
    for number in range(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if by_step or number % 2:
            scheduler.step()
    found = trees.row(models(chosen, simulate(chosen)), 0)
    assert close(found, {name: leaf.detach() for name, leaf in leaves.items()})
    plain = replace(chosen, protocol=replace(chosen.protocol, optimizer=replace(config, schedule=ScheduleConfig())))
    assert gap(found, trees.row(models(plain, simulate(plain)), 0)) > 1e-4


def test_a_step_counts_as_if_the_client_had_taken_all_before_it() -> None:
    """So a client that is absent, or stops early, has the rates of the round that the others are in."""
    optimizer = OptimizerConfig(lr=2, schedule=BY_STEP)
    chosen = setup(FedAvg(), federation((13, 21)), rounds=4, epochs=2, batch=8, optimizer=optimizer)
    table = factors(BY_STEP, 4 * 6)  # of 21 samples: three batches an epoch
    found = chosen.scheduled_rates(1, Stage(), Clock(2, 4), "batches")
    assert torch.equal(found["own"], 2 * table[12:18])
    assert chosen.lr_of(1, Clock(2, 4)) == pytest.approx(2 * float(table[12:18].mean()))
    short = replace(chosen, protocol=replace(chosen.protocol, work=WorkConfig(partial=1, fraction=0.5)))
    assert short.lr_of(1, Clock(2, 4)) == pytest.approx(2 * float(table[12:15].mean()))
    assert torch.equal(found["own"], chosen.scheduled_rates(1, Stage(), Clock(2, 4), "batches")["plain"])
    behind, last = (chosen.scheduled_rates(1, Stage(), Clock(number, 4), "batches") for number in (5, 3))
    assert torch.equal(behind["own"], last["own"]), "of what is trained to prepare behind the last round"


@pytest.mark.parametrize("engine", tiered(ENGINES, quick=["stacked", "rerun", "workers"]))
@pytest.mark.parametrize("config", sampled([SGD, ADAMW], every=2), ids=["sgd by round", "adamw by step"])
def test_every_engine_follows_it(
    engine: str, config: OptimizerConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By step the rates of clients of different sizes differ; states are fresh and kept."""
    monkeypatch.setattr(graphs, "WARM", 0)
    as_looped(engine, config)
    assert not caplog.records, "a step that is not captured is told"


QUICK = ("scaffold", "fednova", "fedavg", "pfedme", "fedrep")
REFUSING = {"fednova", "scaffold"}
NORMALISED = {"fedbn", "finetune_norm"}  # see tests/engine/test_optimizer_state.py


@pytest.mark.parametrize("preset", tiered(sorted({*groups.names("method")} - NORMALISED), quick=QUICK))
def test_every_method_follows_it_as_rows_of_one_program(preset: str) -> None:
    method = resolve(compose([f"method={preset}"])).method
    config = OptimizerConfig(lr=0.01, schedule=STEP if preset in REFUSING else BY_STEP)
    chosen = setup(method, federation((13, 21, 5)), rounds=2, epochs=1, optimizer=config)
    plain, other = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 3))
    assert gap(plain.server, other.server) < 1e-6
    assert gap(plain.memory, other.memory) < 1e-6


def test_scaffold_refuses_a_rate_that_will_be_too_small_on_every_engine_at_once() -> None:
    config = OptimizerConfig(lr=0.1, schedule=ScheduleConfig(name="cosine", final=0.0))
    chosen = setup(Scaffold(), federation((13, 21)), rounds=200, optimizer=config)
    for engine in (None, StackedTrainer(chosen, 2)):
        with pytest.raises(FedbenchError, match="use a rate of at least"):
            simulate(chosen, engine)


@dataclass(frozen=True)
class Told(FedAvg):
    """Two stages, one at a rate of its own, one with an optimiser of its own; hooks see the rates they are told."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        own = OptimizerConfig(lr=0.05)
        return Stage(self.loss, moves=("@head",), lr=0.3), Stage(self.loss, fixed=("@head",), order=1, optimizer=own)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        return super().loss(work, client, batch) * (1 + client.lr)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        shared, kept = super().finish(work, client)
        return {name: leaf * (1 + client.lr) for name, leaf in shared.items()}, kept


@pytest.mark.parametrize("engine", tiered(ENGINES, quick=["stacked", "rerun"]))
@pytest.mark.parametrize("schedule", [STEP, BY_STEP], ids=["by round", "by step"])
def test_hooks_are_told_the_rate_and_a_stage_s_own_rate_falls_too(schedule: ScheduleConfig, engine: str) -> None:
    chosen = setup(Told(), federation((13, 21, 5)), rounds=3, optimizer=OptimizerConfig(lr=0.1, schedule=schedule))
    rates = chosen.scheduled_rates(1, Stage(lr=0.3), Clock(1, 3), "batches")
    assert rates["own"].tolist() == pytest.approx((3 * rates["plain"]).tolist())
    assert not chosen.scheduled_rates(1, Stage(optimizer=OptimizerConfig()), Clock(1, 3), "batches")
    plain = simulate(chosen)
    assert gap(plain.server, simulate(chosen, ENGINES[engine](chosen)).server) < 1e-9
    if schedule.by == "round":
        assert chosen.client(1, {}, {}, Clock(0, 3)).lr == pytest.approx(0.05), "the warm-up's first round"


def test_a_method_that_steps_by_itself_takes_the_step_s_rate() -> None:
    """pFedMe: w <- w - eta lambda (w - theta), with eta of the step; a round at rate 0 moves no w."""
    config = OptimizerConfig(lr=0.1, schedule=ScheduleConfig(name="step", every=1, gamma=1e-12))
    chosen = setup(PFedMe(), federation((9,)), rounds=2, optimizer=config)
    _, first = steps(chosen, 1)
    _, second = steps(chosen, 2)
    assert gap(first.server, second.server) < 1e-9
    assert gap(first.server, simulate(setup(PFedMe(), federation((9,)), rounds=2)).server) > 1e-4


@pytest.mark.parametrize("engine", [None, "stacked"])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_rate_that_a_schedule_rounds_to_0_moves_nothing(name: Any, engine: Any) -> None:
    """0.1 * 1e-200 ** 2 is 0 in float64."""
    config = OptimizerConfig(name=name, lr=0.1, schedule=ScheduleConfig(name="step", every=1, gamma=1e-200))
    chosen = setup(FedAvg(), federation((9, 14)), rounds=3, optimizer=config)
    before, after = (
        simulate(replace(chosen, protocol=replace(chosen.protocol, rounds=rounds)), engine and ENGINES[engine](chosen))
        for rounds in (2, 3)
    )
    assert gap(before.server, after.server) < 1e-12


def test_the_tuning_before_scoring_has_the_full_rate() -> None:
    config = OptimizerConfig(lr=0.1, schedule=ScheduleConfig(name="step", every=1, gamma=1e-9))
    tuned, flat = (
        setup(Finetune(), federation((9, 14)), rounds=2, optimizer=each) for each in (config, OptimizerConfig(lr=0.1))
    )
    _, state = steps(tuned, 2)
    assert gap(adapted(tuned, state), adapted(flat, state)) == 0
    ids, clock = torch.arange(2), Clock(2, 2)
    message = tuned.method.send(state.server, tuned.cohort(ids, clock))
    one, other = (StackedTrainer(each, 2).evaluate(ids, message, {}, clock, ("local",)) for each in (tuned, flat))
    assert torch.equal(one["local"][0], other["local"][0])


def test_scaffold_divides_by_the_round_s_rate_and_refuses_one_that_changes_within() -> None:
    schedule = ScheduleConfig(name="step", every=1, gamma=0.5)
    config = OptimizerConfig(lr=0.1, schedule=schedule)
    chosen = setup(Scaffold(), federation((9,)), rounds=3, epochs=1, batch=50, optimizer=config)
    _, before = steps(chosen, 1)
    _, after = steps(chosen, 2)
    moved = {k: (before.server[f"model/{k}"] - after.server[f"model/{k}"]) / 0.05 for k in trees.row(before.memory, 0)}
    assert gap(trees.row(after.memory, 0), moved) < 1e-9, "one step of a lone client: c_i' = (x - y) / rate"
    within = replace(chosen, protocol=replace(chosen.protocol, optimizer=OptimizerConfig(schedule=BY_STEP)))
    with pytest.raises(
        ConfigError, match=r"^scaffold needs one learning rate a round; choose protocol.optimizer.schedule.by=ro"
    ):
        simulate(within)


# ---- the config


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"name": "step"},
            "protocol.optimizer.schedule.name=step needs protocol.optimizer.schedule.every, a number of",
        ),
        (
            {"gamma": 0.5},
            "protocol.optimizer.schedule.gamma=0.5 counts only with protocol.optimizer.schedule.name=step",
        ),
        ({"name": "step", "every": 3, "final": 0.5}, "schedule.final=0.5 counts only with .*schedule.name=cosine"),
        (
            {"by": "step"},
            "protocol.optimizer.schedule.by=step counts only with a warmup, or a name other than constant",
        ),
        ({"name": "cosine", "warmup": -1}, "protocol.optimizer.schedule.warmup must be at least 0, got -1"),
        ({"name": "linear"}, "unknown protocol.optimizer.schedule.name 'linear'"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(FedbenchError, match=said):
        ScheduleConfig(**values)


def test_a_run_without_one_has_the_key_that_it_had() -> None:
    plain = resolve(compose(["method=fedavg", "seed=0"]))
    written = resolve(compose(["method=fedavg", "seed=0", "protocol.optimizer.schedule.name=constant"]))
    moved = resolve(compose(["method=fedavg", "seed=0", "protocol.optimizer.schedule.name=cosine"]))
    del plain.plain["protocol"]["optimizer"]["schedule"]  # as a config that was saved before there was one
    assert plain.changed().key == written.key == KEY
    assert moved.key != KEY
    assert moved.protocol_changes == "optimizer.schedule.name=cosine"


KEY = "7fd761ad49638e83"


def test_a_schedule_that_the_run_is_too_short_for_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def told(*overrides: str) -> list[str]:
        warn_once.cache_clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedbench"):
            chosen = [
                "method=local",
                "dataset=digits",
                "dataset.limit=200",
                "partition=homo",
                "partition.num_clients=4",
            ]
            run = resolve(compose([*chosen, f"runs_dir={tmp_path}", "protocol.rounds=6", *overrides]))
            execution.check_rounds(run, building.build(run))
        return [each.getMessage() for each in caplog.records if "schedule" in each.getMessage()]

    assert told("protocol.optimizer.schedule.warmup=6") == [
        "protocol.optimizer.schedule.warmup=6 rounds: the run of 4 of 4 clients is over before they are"
    ]
    assert not told("protocol.optimizer.schedule.warmup=5", "protocol.optimizer.schedule.name=cosine")
    step = ["protocol.optimizer.schedule.name=step", "protocol.optimizer.schedule.every=4"]
    assert not told(*step)
    assert told(*step, "protocol.optimizer.schedule.warmup=2") == [
        "protocol.optimizer.schedule.every=4 rounds: the run of 4 of 4 clients is over before they are"
    ]
    assert told("protocol.optimizer.schedule.by=step", "protocol.optimizer.schedule.warmup=10000") == [
        "protocol.optimizer.schedule.warmup=10000 steps: the run of 4 of 4 clients is over before they are"
    ]


@pytest.mark.slow
def test_torch_s_compiler_is_not_imported_for_it() -> None:
    """Its import takes seconds, in every worker process."""
    code = (
        "import sys; from fedbench.config.schema import ScheduleConfig; from fedbench.engine.optim import factors; "
        "factors(ScheduleConfig(name='cosine', warmup=2), 5); print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
