"""IFCA, CFL, FeSEM: rounds computed by hand."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.methods.cfl import CFL
from fedbench.methods.fesem import FeSEM
from fedbench.methods.ifca import IFCA
from fedbench.methods.kmeans import KMeans
from fedbench.methods.parts import clustered
from fedbench.methods.parts.clustered import weight_vectors
from tests.methods.toys import (
    FOUR,
    close,
    cross_entropy,
    descend,
    federation,
    gap,
    logits,
    run,
    same_groups,
    samples,
    setup,
)

WHOLE: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=0.1)}


def step(chosen: Setup, client: int, w: Tree) -> Tree:
    """One full-batch gradient step."""
    x, y = samples(chosen, client)
    return descend(lambda w: cross_entropy(logits(w, x), y), w, 0.1)


def test_a_round_of_ifca_by_hand() -> None:
    chosen, state = run(IFCA(k=3), **WHOLE)
    generator = rng.torch_rng(0, "init")
    start = [{k: v.double() for k, v in chosen.task.init(generator).items()} for _ in range(3)]
    assert gap(start[0], start[1]) > 0.1
    taken: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for k in range(4):
        losses = [float(cross_entropy(logits(w, samples(chosen, k)[0]), samples(chosen, k)[1])) for w in start]
        taken[losses.index(min(losses))].append(k)
    assert max(len(clients) for clients in taken.values()) < 4, "the toy should use two models at least"
    for j, clients in taken.items():
        expected = start[j]
        if clients:
            n = sum(FOUR[k] for k in clients)
            trained = [step(chosen, k, start[j]) for k in clients]
            expected = {
                name: sum(FOUR[k] / n * w[name] for k, w in zip(clients, trained, strict=True)) for name in start[j]
            }
        assert close(trees.row(state.server, j), {k: torch.as_tensor(v) for k, v in expected.items()})
    size = sum(v[0].numel() for v in state.server.values())
    assert state.bytes_down == 4 * 3 * 8 * size, "all three models are sent to each"
    assert state.bytes_up == 4 * 8 * (size + 1), "one comes back, with its number"


def test_a_round_of_fesem_by_hand() -> None:
    """Uploads 0, 1, 9, 10 in clusters {0, 1, 9} and {10}: centres 10/3 and 10; then 9 moves over."""
    chosen = setup(FeSEM(k=2), federation((5, 5, 5, 5)))
    method = chosen.method
    names = chosen.task.init(torch.Generator())
    at = torch.tensor([0.0, 1.0, 9.0, 10.0], dtype=torch.float64)
    uploads = {k: at.view(-1, *[1] * v.dim()).expand(4, *v.shape) for k, v in names.items()}
    server = {
        "coalition": torch.tensor([0, 0, 0, 1]),
        **trees.join(base={k: uploads[k][[0, 3]] for k in names}),
    }
    after = method.aggregate(server, uploads, chosen.cohort(torch.arange(4), Clock(0, 1)))
    assert after["coalition"].tolist() == [0, 0, 1, 1]
    assert close(after["base/head.bias"], torch.tensor([[10 / 3] * 4, [10.0] * 4], dtype=torch.float64))
    away = chosen.cohort(torch.tensor([0, 1]), Clock(0, 1))
    after = method.aggregate(server, {k: v[:2] for k, v in uploads.items()}, away)
    assert after["coalition"].tolist() == [0, 0, 0, 1]
    assert close(after["base/head.bias"], torch.tensor([[0.5] * 4, [10.0] * 4], dtype=torch.float64))


@pytest.mark.parametrize("compared", [("head.bias",), ("@head",), ("fc.*", "@head")])
def test_distances_are_over_the_weights_compared(compared: tuple[str, ...]) -> None:
    """Clients 0 and 1 agree in the head's bias and 0 and 2 in everything else."""
    chosen = setup(KMeans(k=2, compared=compared), federation((5, 5, 5)))
    names = chosen.task.init(torch.Generator())
    uploads = {k: torch.zeros(3, *v.shape, dtype=torch.float64) for k, v in names.items()}
    uploads["head.bias"][2] = 3.0
    uploads["head.weight"][1] = 100.0
    points = weight_vectors(uploads, chosen.task, compared)
    alike = [0, 0, 1] if compared == ("head.bias",) else [0, 1, 0]
    assert same_groups(clustered.kmeans(clustered.isometric_coordinates(points.numpy()), 2).tolist(), alike)
    assert points.shape[1] == sum(
        v.numel() for k, v in names.items() if any(fnmatch(k, each.replace("@head", "head.*")) for each in compared)
    )
    with pytest.raises(ConfigError, match="matches none of the network's weights"):
        run(FeSEM(k=2, compared=("tail.*",)))


def test_fesem_moves_clients_by_what_is_compared() -> None:
    """By hand: heads 0, 1, 9, 10 in clusters {0, 1, 9} and {10}, bodies that would keep all where they are."""
    chosen = setup(FeSEM(k=2, compared=("head.bias",)), federation((5, 5, 5, 5)))
    names = chosen.task.init(torch.Generator())
    far = torch.tensor([0.0, 0.0, 0.0, 500.0], dtype=torch.float64)
    near = torch.tensor([0.0, 1.0, 9.0, 10.0], dtype=torch.float64)
    uploads = {
        k: (near if k == "head.bias" else far).view(-1, *[1] * v.dim()).expand(4, *v.shape) for k, v in names.items()
    }
    server = {
        "coalition": torch.tensor([0, 0, 0, 1]),
        **trees.join(base={k: uploads[k][[0, 3]] for k in names}),
    }
    after = chosen.method.aggregate(server, uploads, chosen.cohort(torch.arange(4), Clock(0, 1)))
    assert after["coalition"].tolist() == [0, 0, 1, 1]


def split_toy(method: CFL, moves: list[float], ids: list[int]) -> Tree:
    """The server after one round in which client ids[i] moved every weight by moves[i] (all from 1)."""
    chosen = setup(method, federation((5, 5, 5, 10, 5)))
    names = chosen.task.init(torch.Generator())
    at = 1 + torch.tensor(moves, dtype=torch.float64)
    uploads = {k: at.view(-1, *[1] * v.dim()).expand(len(ids), *v.shape) for k, v in names.items()}
    server = {
        "coalition": torch.zeros(5, dtype=torch.int64),
        **trees.join(base={k: torch.ones(1, *v.shape, dtype=torch.float64) for k, v in names.items()}),
    }
    return method.aggregate(server, uploads, chosen.cohort(torch.tensor(ids), Clock(0, 1)))


WEIGHTS = (16 * 7 + 7 + 7 * 4 + 4) ** 0.5  # norm of an update that moves every weight by 1


def test_cfl_splits_by_hand() -> None:
    """Clients 0, 1, 2, 4 (5 samples) and 3 (10): updates +1 +1 -1 -1 +1 sum to (3 * 5 - 5 - 10) / 30 = 0."""
    everyone = list(range(5))
    moves = [1.0, 1.0, -1.0, -1.0, 1.0]
    due = CFL(eps1=0.1, eps2=0.9 * WEIGHTS)
    after = split_toy(due, moves, everyone)
    assert same_groups(after["coalition"].tolist(), [0, 0, 1, 1, 0])
    bias = {int(k): float(v[0]) for k, v in enumerate(after["base/head.bias"])}
    assert bias[int(after["coalition"][0])] == pytest.approx(2.0)
    assert bias[int(after["coalition"][2])] == pytest.approx(0.0)
    for early in (
        CFL(eps1=0.1, eps2=1.1 * WEIGHTS),  # no client is far from its optimum
        CFL(eps1=0.0, eps2=0.0),  # the cluster is not yet at its own
        CFL(eps1=0.1, eps2=0.0, warmup=1),
    ):
        assert split_toy(early, moves, everyone)["coalition"].tolist() == [0] * 5
    assert split_toy(CFL(eps1=WEIGHTS, eps2=0.0, gamma_max=0.5), [0.1] * 5, everyone)["coalition"].tolist() == [0] * 5
    unbalanced = split_toy(CFL(eps1=0.1, eps2=0.0), [1.0, 1.0, -1.0, 1.0, 1.0], everyone)
    assert unbalanced["coalition"].tolist() == [0] * 5


def test_relative_thresholds_do_not_know_the_scale_of_updates() -> None:
    """Mean update .6, then .2; absolute thresholds would see 1e-3 of each. Halves inherit the largest mean."""
    for scale in (1e-3, 1.0):
        chosen = setup(CFL(eps1=0.5, eps2=1.0, relative=True), federation((5, 5, 5, 10, 5)))
        names = chosen.task.init(torch.Generator())
        server = chosen.method.init(chosen.task, chosen.population, torch.Generator())[0]
        seen = []
        for round_, moves in enumerate(([1.0, 1.0, 0.2, 0.2, 1.0], [1.2, 1.2, -0.8, -0.8, 1.2])):
            at = scale * torch.tensor(moves, dtype=torch.float64)
            received = chosen.method.send(server, chosen.cohort(torch.arange(5), Clock(round_, 2)))
            uploads = {k: received[k] + at.view(-1, *[1] * v.dim()) for k, v in names.items()}
            server = chosen.method.aggregate(server, uploads, chosen.cohort(torch.arange(5), Clock(round_, 2)))
            seen.append(server["coalition"].tolist())
        assert seen[0] == [0] * 5, "the first mean update is the largest yet"
        assert same_groups(seen[1], [0, 0, 1, 1, 0])
        assert server["peak"] / (scale * WEIGHTS) == pytest.approx([0.6] * 5)


def test_absent_members_stay_with_the_larger_half() -> None:
    """Client 3 (10 samples) against 0 and 1; 2 and 4 are away."""
    after = split_toy(CFL(eps1=0.1, eps2=0.0), [1.5, 0.5, -1.0], [0, 1, 3])["coalition"].tolist()
    assert after in ([0, 0, 0, 1, 0], [1, 1, 0, 0, 0])
    after = split_toy(CFL(eps1=0.1, eps2=0.0), [2.0, -1.0], [0, 3])["coalition"].tolist()
    assert after == [1, 0, 0, 0, 0]
