"""Ray is joined or started, or the reason why not is one line."""

from __future__ import annotations

import signal
import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.core.errors import ConfigError
from fedbench.sweeps.jobs import started_ray


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for the module: a cluster of two machines, one of them gone."""
    up: list[object] = []

    def init(**given: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray does, with a handler of its own
        up.append(given)

    machines = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    found = SimpleNamespace(
        is_initialized=lambda: bool(up), init=init, shutdown=up.clear, nodes=lambda: machines, up=up
    )
    monkeypatch.setitem(sys.modules, "ray", found)
    return found


def test_it_lives_as_long_as_the_work_and_leaves_signals_alone(ray: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with started_ray(None, {"num_gpus": 2}) as found:
        assert found is ray
        assert ray.up
        assert signal.getsignal(signal.SIGTERM) is before
        with started_ray(None, {}):
            pass
        assert ray.up, "who finds it running does not end it"
    assert not ray.up


def test_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ConfigError, match=r"hydra.launcher needs Ray: pip install 'fedbench-harness\[ray\]'"),
        started_ray(None, {}),
    ):
        pass


def test_nobody_listens_at_the_address(ray: Any) -> None:
    """Ray itself would try for ten minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = rf"no Ray at hydra.launcher.address=127.0.0.1:{port}; ray start --head starts one"
    with pytest.raises(ConfigError, match=said), started_ray(f"127.0.0.1:{port}", {}):
        pass
    assert not ray.up


def test_more_is_asked_for_than_any_machine_has(ray: Any) -> None:
    for asked, said in (
        ({"num_gpus": 4}, "num_gpus=4: .* at most 2 GPU"),
        ({"num_cpus": 5}, "num_cpus=5: .* at most 4"),
    ):
        with pytest.raises(ConfigError, match=f"hydra.launcher.{said}"), started_ray(None, asked):
            pass
        assert not ray.up
