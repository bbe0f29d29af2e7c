"""FedAS: limits, and two rounds by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.methods.fedas import FedAS
from fedbench.methods.fedper import FedPer
from fedbench.methods.local import Local
from tests.methods.toys import (
    BODY,
    close,
    cross_entropy,
    derivative,
    descend,
    features,
    federation,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)

LR, SIZES = 0.2, (5, 9)


def test_without_alignment_a_client_alone_in_its_round_is_fedpers() -> None:
    state = simulate(setup(FedAS(align_epochs=0), rounds=4, cohort=0.2))
    fedper = simulate(setup(FedPer(), rounds=4, cohort=0.2))
    assert close(state.server, fedper.server)
    assert close({name: state.memory[f"own/{name}"] for name in fedper.memory}, fedper.memory)
    assert gap(simulate(setup(FedAS(), rounds=4, cohort=0.2)).server, fedper.server) > 1e-4
    both = simulate(setup(FedPer(), rounds=2)).server
    assert gap(simulate(setup(FedAS(align_epochs=0), rounds=2)).server, both) > 1e-4, "clients are weighed by T"


def test_all_private_and_not_aligned_it_is_local() -> None:
    state = simulate(setup(FedAS(private=("*",), align_epochs=0), rounds=2))
    assert close(trees.part(state.memory, "own"), simulate(setup(Local(), rounds=2)).memory)


def distance(x: Tensor, y: Tensor, means: dict[int, Tensor], w: Tree) -> Tensor:
    z = features(w, x)
    each = [torch.nn.functional.mse_loss(z[y == c], m.expand(int((y == c).sum()), -1)) for c, m in means.items()]
    return torch.stack(each).sum()


def fisher(x: Tensor, y: Tensor, w: Tree) -> float:
    """Of mini-batches of four."""
    total = 0.0
    for rows in torch.arange(len(y)).split(4):
        slope = derivative(lambda v, rows=rows: cross_entropy(logits(v, x[rows]), y[rows]), w)  # type: ignore[misc]
        total += float(sum((leaf**2).sum() for leaf in slope.values()))
    return total


def test_two_rounds_by_hand() -> None:
    options: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}
    chosen = setup(FedAS(align_epochs=2, align_lr=0.5, fisher_batch=4), federation(SIZES), **options)
    own = [initial(chosen), initial(chosen)]
    body = {name: own[0][name] for name in BODY}
    for _ in range(2):
        trained, traces = [], []
        for k in (0, 1):
            x, y = samples(chosen, k)
            means = {c: features(own[k], x)[y == c].mean(0) for c in y.unique().tolist()}
            w = {**own[k], **body}
            for _ in range(2):
                w = descend(partial(distance, x, y, means), w, 0.5, ["fc"])
            trained.append(descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, LR))  # type: ignore[misc]
            traces.append(fisher(x, y, trained[k]))
        share = [trace / sum(traces) for trace in traces]
        assert abs(share[0] - 5 / 14) > 1e-2
        body = {name: share[0] * trained[0][name] + share[1] * trained[1][name] for name in BODY}
        own = trained
    state = simulate(chosen)
    assert close(state.server, body)
    assert close(models(chosen, state), trees.stack(own))
