"""A small table, and selections of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedbench.papers import spec
from fedbench.papers.selection import Selection


def table(**changes: Any) -> spec.TableSpec:
    """Two methods on two data sets, one of which is not on this machine."""
    content: dict[str, Any] = {
        "name": "toy",
        "title": "Toy",
        "paper": "fedcollab",
        "table": "T1",
        "seeds": 2,
        "base": ["protocol.rounds=20"],
        "metrics": [{"name": "acc"}],
        "rows": [
            {"label": "FedAvg", "overrides": ["method=fedavg"]},
            {"label": "FedProx", "overrides": ["method=fedprox", "method.mu=0.3"]},
        ],
        "columns": [
            {"label": "here", "overrides": ["dataset=digits", "model=mlp"]},
            {
                "label": "elsewhere",
                "overrides": ["dataset=cifar100", "dataset.labels=coarse", "partition=pathological20"],
                "substitute": ["partition=pathological2"],
            },
        ],
    }
    return spec.parse_spec({**content, **changes})


def selection(tmp_path: Path, changed: tuple[str, ...] = (), **more: Any) -> Selection:
    """A selection whose runs go to `tmp_path`, `changed` in all of them."""
    return Selection(overrides=(*changed, f"runs_dir={tmp_path}"), **more)
