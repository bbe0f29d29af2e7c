"""A method whose selector finds nothing in the network is refused: it would be another method under its name."""

from __future__ import annotations

from typing import Any

import pytest

from fedbench.config import groups
from fedbench.core.errors import ConfigError
from fedbench.engine.method import Method, check_selectors
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model, Task
from tests.methods.toys import setup


def method(name: str, **fields: Any) -> Method:
    built: Method = groups.registry("method").build({"name": name, **fields})
    return built


def task(model: Model) -> Task:
    return model.task((1, 16, 16), 4)


PLAIN, NORMALISED = task(MLP(hidden=(6,))), task(LeNet5(batch_norm=True))


REFUSED: list[tuple[Method, str]] = [
    (method("fedper", private=["nosuch"]), "method.private: 'nosuch' matches none of the network's leaves"),
    (method("fedper", private=["@head", "hed.*"]), "nearest: head.bias, head.weight"),
    (
        method("fedbn"),
        "method.private=[@norm] finds none of the network's leaves; it has @head, @body, @classifier:",
    ),
    (method("fedavg", private=["@stats"]), "method.private=[@stats] finds none"),
    (method("fedamp", private=["@stats", "nosuch"]), "'nosuch' matches none"),
    (method("finetune", tuned=["haed.*"]), "method.tuned: 'haed.*' matches none"),
    (method("kmeans", compared=["@stats"]), "method.compared=[@stats] finds none of the network's weights"),
    (method("sosicfl", simplex=["tail"]), "method.simplex: 'tail' matches none of the network's weights"),
    (method("fedper", private=["@nosuch"]), "unknown leaf group '@nosuch'"),
    (method("fedcollab", base={"name": "fedbn"}), "method.base.private=[@norm] finds none"),
]


@pytest.mark.parametrize(("chosen", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_finds_nothing_is_refused_in_one_line(chosen: Method, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_selectors(chosen, PLAIN)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["fedamp", "pfedsim", "fedap", "pfedhn", "fedavg", "local", "fedper", "lg_fedavg"])
def test_what_may_find_nothing_or_finds_something_is_accepted(name: str) -> None:
    check_selectors(method(name), PLAIN)
    check_selectors(method(name), NORMALISED)


def test_groups_that_a_network_lacks_may_stand_beside_others() -> None:
    check_selectors(method("fedper", private=["@head", "@stats"]), PLAIN)
    check_selectors(method("fedbn"), NORMALISED)
    check_selectors(method("fedavg", private=["@stats"]), NORMALISED)


def test_a_run_does_not_begin() -> None:
    with pytest.raises(ConfigError, match="finds none"):
        setup(method("fedbn"))
