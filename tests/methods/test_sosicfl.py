"""SosicFL: laws, a step by hand, subregions, traffic."""

from __future__ import annotations

import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock
from fedbench.engine.setup import Setup
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.sosicfl import SosicFL, SosicFLPlus
from tests.methods.toys import FOUR, close, federation, gap, models, setup, simulate

GROUPS = [[0, 1], [2, 3], [0, 1], [2, 3]]


def run(method: SosicFL | FedAvg | Ditto, **options: object) -> tuple[Setup, Tree, Tree]:
    chosen = setup(method, federation(FOUR, labels=GROUPS), rounds=3, cohort=0.75, **options)  # type: ignore[arg-type]
    state = simulate(chosen)
    return chosen, state.server, models(chosen, state)


@pytest.mark.parametrize("simplex", [("@head",), ("*",)])
def test_with_one_endpoint_it_is_fedavg(simplex: tuple[str, ...]) -> None:
    fedavg = run(FedAvg())[2]
    assert close(run(SosicFL(endpoints=1, simplex=simplex))[2], fedavg)
    assert gap(run(SosicFL(endpoints=2, simplex=simplex))[2], fedavg) > 1e-3


def test_with_one_endpoint_plus_is_ditto() -> None:
    for lam in (0.0, 0.7):
        assert close(run(SosicFLPlus(endpoints=1, lam=lam))[2], run(Ditto(lam=lam))[2])


def test_the_shared_endpoints_of_plus_are_sosicfl_s() -> None:
    alone, beside = run(SosicFL())[1], run(SosicFLPlus(lam=3.0, personal_epochs=1))[1]
    assert close(alone, beside)


@pytest.mark.parametrize("simplex", [("@head",), ("*",)])
def test_a_step_by_hand(simplex: tuple[str, ...]) -> None:
    """Eq. 8 with rho = 0: theta_m -= alpha_m lr grad F(sum_m alpha_m theta_m), alpha the centre; then the mean."""
    lr = 0.3
    method = SosicFL(endpoints=3, clusters=2, rho=0.0, simplex=simplex)
    data = federation((5, 9), labels=[[0, 1], [2, 3]])
    options = {"rounds": 1, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=lr)}
    before = simulate_rounds(setup(method, data, **options), 0)
    chosen = setup(method, data, **options)
    after = simulate_rounds(chosen, 1)
    names = ["head.weight", "head.bias"] + (["fc.0.weight", "fc.0.bias"] if simplex == ("*",) else [])
    assert {k for k in before if k.startswith("endpoints/")} == {f"endpoints/{name}" for name in names}
    expected = {k: torch.zeros_like(v) for k, v in before.items() if not k.startswith("region/")}
    assert gap({"": before["region/center"][0]}, {"": before["region/center"][1]}) > 0.5, "each client its own cluster"
    for k, share in ((0, 5 / 14), (1, 9 / 14)):
        alpha = before["region/center"][k]
        w = {
            name: sum(alpha[m] * before[f"endpoints/{name}"][m] for m in range(3)) if name in names else before[name]
            for name in chosen.task.parameters
        }
        leaves = {name: torch.as_tensor(leaf).clone().requires_grad_(True) for name, leaf in w.items()}
        x, y = data.gather(data.indices("train", k))
        hidden = torch.relu(x.flatten(1) @ leaves["fc.0.weight"].t() + leaves["fc.0.bias"])
        loss = torch.nn.functional.cross_entropy(hidden @ leaves["head.weight"].t() + leaves["head.bias"], y)
        for name, g in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            if name in names:
                for m in range(3):
                    moved = before[f"endpoints/{name}"][m] - lr * alpha[m] * g
                    expected[f"endpoints/{name}"][m] += share * moved
            else:
                expected[name] += share * (before[name] - lr * g)
    assert close({k: after[k] for k in expected}, expected)


def simulate_rounds(chosen: Setup, rounds: int) -> Tree:
    from fedbench.engine.looped import LoopedTrainer
    from fedbench.engine.simulation import Simulation

    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for _ in range(rounds):
        simulation.step(state)
    return state.server


def view(chosen: Setup, server: Tree, client: int, completed: int) -> Client:
    clock = Clock(completed, 10)
    message = chosen.method.send(server, chosen.cohort(torch.arange(4), clock))
    return chosen.client(client, trees.row(message, client), {}, clock)


def test_similar_clients_share_a_subregion_and_draw_from_it() -> None:
    method = SosicFL(endpoints=2, clusters=2, rho=0.3)
    chosen, server, _ = run(method)
    center, radius = server["region/center"], float(server["region/radius"])
    assert torch.equal(center[0], center[2])
    assert torch.equal(center[1], center[3])
    assert float((center[0] - center[1]).abs().sum()) > 1
    assert 0 < radius < 0.35
    drawn = method.draw(torch.Generator().manual_seed(0), 400, view(chosen, server, 0, 4))["alpha"]
    assert float((drawn - center[0]).abs().sum(1).max()) <= radius


def test_samples_are_used_in_turn() -> None:
    chosen, server, _ = run(SosicFL(rho=0.3))
    client = view(chosen, server, 1, 0)
    for samples in (1, 3):
        drawn = SosicFL(samples=samples).draw(torch.Generator(), 7, client)["alpha"]
        assert torch.equal(drawn, drawn[torch.arange(7) % samples])
        assert len(drawn.unique(dim=0)) == samples
    assert len(SosicFL().draw(torch.Generator(), 7, client)["alpha"].unique(dim=0)) == 7
    plus = SosicFLPlus(personal_samples=2).draw(torch.Generator(), 7, client)
    assert len(plus["alpha"].unique(dim=0)) == 7
    assert len(plus["personal"].unique(dim=0)) == 2


def test_global_and_client_models_are_points_of_the_simplex() -> None:
    chosen, server, personal = run(SosicFL())
    weights = server["endpoints/head.weight"]
    common = chosen.method.common(server, chosen.task)
    assert common is not None
    assert close(common["head.weight"], weights.mean(0))
    for k in range(4):
        at = sum(server["region/center"][k][m] * weights[m] for m in range(3))
        assert close(personal["head.weight"][k], torch.as_tensor(at))
    assert close(personal["fc.0.weight"][3], server["fc.0.weight"])


def test_the_code_has_one_bias_and_a_region_for_each_client() -> None:
    method = SosicFL(simplex=("head.weight",), positions="trained", sampling="unprojected", rho=0.25)
    _, server, _ = run(method)
    assert {k for k in server if k.startswith("endpoints/")} == {"endpoints/head.weight"}
    assert server["head.bias"].shape == (4,)
    assert float(server["region/radius"]) == 0.25
    assert len(server["region/center"].unique(dim=0)) == 4
    assert close(server["region/center"].sum(1), torch.ones(4, dtype=torch.float64))


def test_traffic_is_endpoints_and_a_region() -> None:
    chosen = setup(SosicFL(endpoints=3), federation(FOUR), rounds=1)
    state = simulate(chosen)
    body, head, counts = 16 * 7 + 7, 7 * 4 + 4, 4 * 4 * 4
    assert state.bytes_up == counts + 4 * 8 * (body + 3 * head)
    assert state.bytes_down == 4 * 8 * (body + 3 * head + 3 + 1)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UnknownName, match="hilbert"):
        SosicFL(metric="hilbrt")
    with pytest.raises(ConfigError, match="endpoints"):
        SosicFL(endpoints=0)
    with pytest.raises(ConfigError, match=r"^method.endpoints must lie in \[1, 30\], got 1000$"):
        SosicFL(endpoints=1000)
    with pytest.raises(ConfigError, match="rho"):
        SosicFL(rho=-0.1)
