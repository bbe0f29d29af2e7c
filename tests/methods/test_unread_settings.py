"""Settings that a method does not read beside others are refused: they would name another run of the same numbers."""

from __future__ import annotations

from typing import Any

import pytest

from fedbench.core.errors import ConfigError
from fedbench.methods import METHODS
from fedbench.methods.fedrep import FedRep
from tests.methods.toys import setup, simulate

UNREAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "finetune",
        {"epochs": 3},
        "method.epochs=3 counts only without steps, of which there are 2; use steps=null",
    ),
    (
        "fedrep",
        {"head_epochs": 10, "head_iterations": 80},
        "method.head_epochs=10 counts only without head_iterations",
    ),
    (
        "fedamp",
        {"attention": "distance", "self_weight": 0.5},
        "method.self_weight=0.5 is of attention=cosine",
    ),
    (
        "fedamp",
        {"attention": "distance", "similarity": "updates"},
        "method.similarity=updates is of attention=cosine",
    ),
    ("fedcollab", {"join_round": 3}, "method.join_round=3 is for newcomers; name them in method.newcomers"),
]


@pytest.mark.parametrize(("name", "fields", "reason"), UNREAD)
def test_beside_another_setting(name: str, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        METHODS.build({"name": name, **fields})
    assert "\n" not in str(caught.value)


def test_what_takes_their_place_is_read() -> None:
    for name, fields in (
        ("finetune", {"steps": None, "epochs": 3}),
        ("fedrep", {"head_epochs": 10}),
        ("fedamp", {"self_weight": 0.5, "similarity": "updates"}),
    ):
        METHODS.build({"name": name, **fields})


@pytest.mark.parametrize("fields", [{"head_epochs": 10}, {"body_epochs": 2}])
def test_epochs_where_the_protocol_counts_iterations(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"not iterations=5; use method\.head_iterations"):
        simulate(setup(FedRep(**fields), iterations=5))
