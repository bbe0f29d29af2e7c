"""DP-FedAvg against rounds and epsilons by hand, the accountant's own numbers, and what would break its guarantee."""

from __future__ import annotations

import io
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import absl.logging
import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig, WorkConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock
from fedbench.methods.dp_fedavg import DPFedAvg, accounting
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedprox import FedProx
from fedbench.methods.oracle import Oracle
from fedbench.models.small import MLP
from fedbench.runs.execution import execute
from fedbench.runs.progress import result_line
from tests.helpers.runs import config
from tests.methods.test_histories import loss_on
from tests.methods.toys import FOUR, ONE_STEP, close, descend, federation, initial, normalised, samples, setup, simulate

WIDE = MLP(hidden=(200,))
dp = accounting()


def model_of(server: Tree) -> Tree:
    return trees.part(server, "base")


def flat(tree: Tree) -> Tensor:
    """All its numbers [P]."""
    return torch.cat([tree[name].flatten() for name in sorted(tree)])


@pytest.mark.parametrize("clip", [1e6, 0.15, 0.05])
def test_a_round_by_hand(clip: float) -> None:
    chosen = setup(DPFedAvg(clip=clip, noise=0.0), federation(FOUR), **ONE_STEP)
    m = initial(chosen)
    norms, total = [], torch.zeros_like(flat(m))
    for k in range(4):
        update = flat(descend(loss_on(samples(chosen, k)), m, 0.2)) - flat(m)
        norms.append(float(update.norm()))
        total += update * min(1.0, clip / norms[-1])
    assert 0.05 < min(norms) < 0.15 < max(norms)
    assert close(flat(model_of(simulate(chosen).server)), flat(m) + total / 4)


def test_without_noise_and_clipping_it_is_its_base_on_equal_clients() -> None:
    for base in (FedAvg(), FedProx(mu=0.5), FedAvg(private=("@head",))):
        mine, plain = (
            setup(method, federation((8,) * 4), rounds=3, cohort=0.5) for method in (DPFedAvg(base, 1e6, 0.0), base)
        )
        found, expected = simulate(mine), simulate(plain)
        assert close(model_of(found.server), expected.server)
        assert close(dict(found.memory), dict(expected.memory))


def test_the_server_sees_no_update_above_the_clip() -> None:
    chosen = normalised(DPFedAvg(clip=0.01))
    method, cohort = chosen.method, chosen.cohort(chosen.everyone, Clock(0, 1))
    server, memory = method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    message = trees.row(method.send(server, cohort), 2)
    view = chosen.client(2, message, trees.row(memory, 2), cohort.clock)
    work = {name: leaf + 1 for name, leaf in message.items()}
    upload, _ = method.finish(work, view)
    assert set(upload) == set(message) >= chosen.task.buffers
    assert float(trees.squared_distance(upload, message)) == pytest.approx(1e-4, rel=1e-3)
    same, _ = method.finish(dict(message), view)
    assert close(same, message, 0)


@pytest.mark.parametrize(("noise", "clip", "cohort"), [(1.0, 0.5, 1.0), (2.0, 0.3, 0.5)])
def test_the_noise_has_the_deviation_z_s_over_c(noise: float, clip: float, cohort: float) -> None:
    quiet, loud = (
        simulate(setup(DPFedAvg(clip=clip, noise=z), federation(FOUR), WIDE, rounds=1, cohort=cohort))
        for z in (0.0, noise)
    )
    drawn = {name: leaf - model_of(quiet.server)[name] for name, leaf in model_of(loud.server).items()}
    deviation = noise * clip / (4 * cohort)
    assert len(flat(drawn)) > 4000
    assert float(flat(drawn).mean()) == pytest.approx(0, abs=4 * deviation / 60)
    for leaf in drawn.values():
        assert float(leaf.std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * leaf.numel()))


def test_noise_differs_between_rounds_and_leaves_no_variance_below_zero() -> None:
    chosen = normalised(DPFedAvg(clip=5.0, noise=4.0), rounds=1)
    method, cohorts = chosen.method, [chosen.cohort(chosen.everyone, Clock(number, 9)) for number in (0, 1)]
    server, _ = method.init(chosen.task, chosen.population, torch.Generator().manual_seed(0))
    uploads = method.send(server, cohorts[0])
    first, second = (model_of(method.aggregate(server, uploads, cohort)) for cohort in cohorts)
    assert float((flat(first) - flat(second)).norm()) > 1
    variances = torch.cat([leaf for name, leaf in first.items() if name.endswith("running_var")])
    assert variances.min() == 0 < variances.max()
    assert min(float(leaf.min()) for name, leaf in first.items() if name.endswith("running_mean")) < 0


# ---- epsilon


def counted(clients: int, **rounds: int) -> list[int]:
    """The leaf `rounds` [N]: `c10=3` are three rounds with ten uploads."""
    return [rounds.get(f"c{uploads}", 0) for uploads in range(1, clients + 1)]


@pytest.mark.parametrize(("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (4.0, 30, 1e-5), (8.0, 300, 1e-3)])
def test_epsilon_of_all_clients_is_the_closed_form(noise: float, rounds: int, delta: float) -> None:
    """A Gaussian's divergence of order a is a / 2 (2 / z)^2, replaced client by client; rounds add up.

    The conversion is Proposition 12 of Canonne, Kamath & Steinke (2020).
    """
    orders = [1 + each / 10 for each in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024]
    spent = [rounds * a / 2 * (2 / noise) ** 2 for a in orders]
    expected = min(
        divergence + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
        for a, divergence in zip(orders, spent, strict=True)
    )
    method = DPFedAvg(noise=noise, delta=delta)
    for sampled in (True, False):
        assert method.epsilon(counted(40, c40=rounds), sampled=sampled) == pytest.approx(expected, rel=1e-12)
    exact = dp.get_epsilon_gaussian(noise / 2 / math.sqrt(rounds), delta)
    assert exact <= expected < 1.2 * exact + 0.1


def by_hand(event: Any, times: int, delta: float) -> float:
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, times).get_epsilon(delta))


def test_epsilon_of_drawn_cohorts_is_the_accountant_s() -> None:
    rounds = counted(100, c10=20)
    for noise, helps in ((2.0, True), (0.3, False)):  # the bound by sampling is not always the lower one
        event, method = dp.GaussianDpEvent(noise / 2), DPFedAvg(noise=noise, delta=1e-6)
        sampled = by_hand(dp.SampledWithoutReplacementDpEvent(100, 10, event), 20, 1e-6)
        whole = by_hand(event, 20, 1e-6)
        assert (sampled < whole) is helps
        assert method.epsilon(rounds, sampled=True) == min(sampled, whole)
        assert method.epsilon(rounds, sampled=False) == whole


def test_epsilon_grows_with_rounds_and_cohorts_and_falls_with_noise_and_delta() -> None:
    def spent(noise: float = 2.0, delta: float = 1e-5, **rounds: int) -> float:
        return DPFedAvg(noise=noise, delta=delta).epsilon(counted(50, **rounds), sampled=True)

    twice = spent(c5=2)
    assert 0 < spent(c5=1) < twice < spent(c5=2, c9=1) < spent(c9=4) < spent(c50=4)
    assert spent(noise=1.0, c50=4) > spent(c50=4) > spent(delta=1e-3, c50=4)
    assert spent() == 0
    assert spent(noise=0.0, c5=1) == math.inf


def test_a_run_counts_the_uploads_of_each_round() -> None:
    method = DPFedAvg(noise=2.0)
    state = simulate(setup(method, federation(FOUR), rounds=3, cohort=0.5))
    assert state.server["rounds"].tolist() == [0, 3, 0, 0]
    assert float(method.record(state.server)["epsilon"]) == method.epsilon([0, 3, 0, 0], sampled=True)
    lossy = simulate(setup(method, federation((8,) * 6), rounds=6, work=WorkConfig(dropout=0.5)))
    rounds = lossy.server["rounds"]
    assert sum(rounds > 0) > 1
    arrived = sum(uploads * times for uploads, times in enumerate(rounds.tolist(), start=1))
    assert lossy.bytes_up == arrived * trees.row_bytes(trees.expand(model_of(lossy.server), 1))


@pytest.mark.parametrize(("base", "sampled"), [(FedProx(), True), (FedAvg(private=("@head",)), False)])
def test_cohorts_count_as_secret_only_where_clients_keep_nothing(base: FedAvg, sampled: bool) -> None:
    method = DPFedAvg(base, noise=2.0)
    state = simulate(setup(method, federation(FOUR), rounds=2, cohort=0.25))
    assert float(method.record(state.server)["epsilon"]) == method.epsilon([2, 0, 0, 0], sampled=sampled)
    assert method.epsilon([2, 0, 0, 0], sampled=True) < method.epsilon([2, 0, 0, 0], sampled=False)


def test_epsilon_is_in_the_row_and_where_it_is_shown(tmp_path: Path) -> None:
    cohort = ["partition.num_clients=10", "protocol.cohort=4"]
    runs = {z: execute(config(tmp_path, "method=dp_fedavg", f"method.noise={z}", *cohort)) for z in (0, 3)}
    loud, rounds = runs[3], runs[3].row["rounds"]
    assert loud.row["epsilon"] == DPFedAvg(noise=3.0).epsilon(counted(10, c4=rounds), sampled=True)
    assert f"epsilon {loud.row['epsilon']:.2f}" in result_line(loud.row)
    assert f"  epsilon: {loud.row['epsilon']:.2f}" in repr(loud)
    quiet = runs[0]
    assert (quiet.row["epsilon"], float(quiet.arrays["epsilon"])) == (None, math.inf)
    assert "epsilon: -" in repr(quiet)
    assert "epsilon" not in execute(config(tmp_path, "method=fedavg", *cohort)).row


# ---- what is refused


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        ("scaffold", "the server of Scaffold does more than average"),
        ("robust", "the server of Robust does more than average"),
        ("feddbe", "FedDBE prepares on the clients' data or sends more than its model, which no noise covers"),
        ("fedphp", "FedPHP prepares on the clients' data or sends more"),
    ],
)
def test_servers_that_learn_more_than_the_average_are_refused(base: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^method.base: {reason}"):
        DPFedAvg(base={"name": base})


@dataclass(frozen=True)
class Chatty(FedAvg):
    """FedAvg that uploads more than it received."""

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        return {**super().finish(work, client)[0], "secret": client.size}, {}


def test_what_no_clipping_or_counting_covers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^method.base: clients of FedAvg upload nothing; choose another one"):
        simulate(setup(DPFedAvg(FedAvg(private=("*",)), noise=0.0), federation(FOUR)))
    with pytest.raises(ConfigError, match=r"^method.base: DPFedAvg cannot clip 'secret', which is no number of the s"):
        simulate(setup(DPFedAvg(Chatty()), federation(FOUR)))
    kept = OptimizerConfig(lr=0.1, momentum=0.9, state="kept")
    with pytest.raises(ConfigError, match=r"^DPFedAvg counts no optimisers' states; choose protocol.optimizer.state=f"):
        simulate(setup(DPFedAvg(), federation(FOUR), optimizer=kept))
    with pytest.raises(ConfigError, match=r"^DPFedAvg counts rounds of all clients; it cannot be inside a method with"):
        simulate(setup(Oracle(DPFedAvg(), coalition=(0, 0, 1, 1)), federation(FOUR)))


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_delta_lies_between_0_and_1(delta: float) -> None:
    with pytest.raises(ConfigError, match=rf"^method.delta must lie in \(0, 1\), got {delta}"):
        DPFedAvg(delta=delta)


def test_the_library_closes_no_stream_that_is_not_its_own() -> None:
    """Pytest, like a notebook, replaces stderr; Hydra ends all handlers before a run."""
    handler, stream = absl.logging.get_absl_handler().python_handler, io.StringIO()
    handler.setStream(stream)
    accounting()
    handler.close()
    assert not stream.closed


def test_without_the_library_a_run_with_noise_is_refused_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"epsilon by dp-accounting: pip install 'fedbench-harness\[privacy\]'; or n"):
        simulate(setup(DPFedAvg(), federation(FOUR)))
    state = simulate(setup(DPFedAvg(noise=0.0), federation(FOUR)))
    assert float(DPFedAvg(noise=0.0).record(state.server)["epsilon"]) == math.inf
