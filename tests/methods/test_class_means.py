"""FedProto's prediction, and settings of FedProto and FedDistill that cannot be."""

from __future__ import annotations

import pytest
import torch

from fedbench.core import trees
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.methods.feddistill import FedDistill
from fedbench.methods.fedproto import FedProto
from tests.methods.toys import (
    close,
    features,
    federation,
    logits,
    models,
    samples,
    setup,
    simulate,
)

SIZES = (6, 13, 8)
LABELS = [[0, 1], [1, 2], [1]]  # class 3 is nobody's, class 0 the first client's alone


def run(method: Method, **options: object) -> tuple[Setup, State]:
    chosen = setup(method, federation(SIZES, labels=LABELS), **options)  # type: ignore[arg-type]
    return chosen, simulate(chosen)


def test_prediction_is_the_nearest_prototype() -> None:
    chosen, state = run(FedProto())
    personal = trees.row(models(chosen, state), 1)
    x, _ = samples(chosen, 0)
    scores = chosen.method.predict(personal, x, chosen.task)
    for one, score in zip(features(personal, x), scores, strict=True):
        gaps = [float((one - personal["classes/means"][c]).norm()) for c in range(3)]
        assert int(score.argmax()) == gaps.index(min(gaps)), "class 3 has no prototype"
    untrained = trees.row(models(chosen, simulate(setup(FedProto(), federation(SIZES), rounds=1, cohort=0.34))), 1)
    untrained["classes/present"] = torch.zeros(4, dtype=torch.bool)
    assert close(chosen.method.predict(untrained, x, chosen.task), logits(untrained, x))
    by_head = setup(FedProto(inference="head"), federation(SIZES)).method
    assert close(by_head.predict(personal, x, chosen.task), logits(personal, x))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UnknownName, match="samples"):
        FedProto(weighting="sample")
    with pytest.raises(UnknownName, match="mse"):
        FedDistill(distance="msee")
    with pytest.raises(ConfigError, match="lam"):
        FedDistill(lam=-1.0)
