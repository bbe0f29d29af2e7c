"""Ray, on request: join a cluster, or start one here, for the time of a piece of work."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedbench.core.errors import ConfigError


@contextmanager
def started_ray(address: str | None, resources: Mapping[str, float], where: str) -> Iterator[Any]:
    """Yield the module `ray`, connected to the cluster at `address` (None: to one of this machine, which ends here).

    `resources` are those of a task or actor, such as num_gpus=1; `where` is the section of the config that sets them.

    Raises:
        ConfigError: Ray is not installed, nothing answers at `address`, or no machine has the `resources`.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(f"{where} needs Ray: pip install 'fedbench-harness[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        before = signal.getsignal(signal.SIGTERM)
        try:
            _knock(address)
            ray.init(
                address=address,
                log_to_driver=False,
                include_dashboard=None if address else False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # ray has no class for it, and says it in many lines
            said = " ".join(str(error).split())[:200]
            raise ConfigError(f"no Ray at {where}.address={address}; ray start --head starts one: {said}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray has taken it, to end the process at once
    try:
        _require(ray, resources, where)
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _knock(address: str | None) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would try for ten minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _require(ray: Any, resources: Mapping[str, float], where: str) -> None:
    """Refuse resources that no machine has; Ray itself would wait for them forever."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for key, name in (("num_gpus", "GPU"), ("num_cpus", "CPU")):
        if (wanted := resources.get(key, 0)) > (most := max((each.get(name, 0) for each in machines), default=0)):
            raise ConfigError(f"{where}.{key}={wanted:g}: a machine of this Ray has at most {most:g} {name}")
