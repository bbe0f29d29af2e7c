"""The defaults teach: on the default federation methods differ, and a parameter can be seen to matter."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from fedbench.config import compose
from fedbench.runs.config import resolve
from fedbench.runs.execution import execute
from fedbench.runs.folder import CLIENTS, files_of

COMPARED = (
    ("method=fedavg",),
    ("method=fedprox", "method.mu=0.1"),
    ("method=fedprox", "method.mu=1"),
    ("method=fednova",),
    ("method=ditto",),
)


@pytest.mark.slow
def test_methods_differ_on_the_default_federation(tmp_path: Path) -> None:
    """Client by client, after a quarter of the default rounds."""
    found = {}
    for chosen in COMPARED:
        overrides = [*chosen, f"runs_dir={tmp_path}", "progress=none", "protocol.rounds=5"]
        result = execute(resolve(compose.compose([*overrides, "hardware=cpu", "hardware.engine=looped"])))
        found[chosen] = [float(row["acc"]) for row in files_of(result.folder).csv(CLIENTS)]
    for (one, ours), (other, theirs) in itertools.combinations(found.items(), 2):
        assert ours != pytest.approx(theirs, abs=0.1), f"{' '.join(one)} and {' '.join(other)} cannot be told apart"
