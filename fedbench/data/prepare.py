"""Bringing data sets to where a run loads them in seconds: fetched, verified, unpacked, read, cached."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from fedbench.core.errors import ConfigError, Report, silent
from fedbench.data.dataset import Dataset, DataSource
from fedbench.data.datasets import DATASETS
from fedbench.data.files import FileSource


def parse_request(words: Sequence[str]) -> list[dict[str, Any]]:
    """Configs from a command line: names, each followed by options of its own (`cub text=true size=32 mnist`).

    Raises:
        ConfigError: an option before any name, or one that cannot be read.
        UnknownName: no such data set.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    chosen: list[tuple[str, list[str]]] = []
    for word in words:
        if "=" not in word:
            DATASETS.get(word)
            chosen.append((word, []))
        elif not chosen:
            raise ConfigError(f"'{word}' follows no data set; for example: cub text=true")
        else:
            chosen[-1][1].append(word)
    configs = []
    for name, options in chosen:
        try:
            given = OmegaConf.to_container(OmegaConf.from_dotlist(options))
        except OmegaConfBaseException as error:
            raise ConfigError(f"{name}: {str(error).splitlines()[0]}") from error
        configs.append({**cast("dict[str, Any]", given), "name": name})
    return configs


def prepare(config: dict[str, Any], root: str | None = None, report: Report = silent) -> str:
    """Fetch (into `root`) what is missing, prepare it, and say what was done in one line.

    Raises:
        FedbenchError: it cannot be fetched, or is not what was published.
    """
    source = DATASETS.build(config)
    if isinstance(source, FileSource):
        source = dataclasses.replace(source, download=True, root=root or source.root)
    before = source.state()
    data = source.load(report)
    after = source.state()
    done = "was ready" if before.ready and before.prepared else "prepared"
    if not before.ready:
        done = "downloaded, verified and prepared"
    return f"{source.label}: {done}: {describe(data)}; from {after.where}"


def describe(data: Dataset) -> str:
    """Its size in words: "60,000 + 10,000 samples of 1 x 28 x 28, 10 classes"."""
    tests = len(data) - data.num_train
    shape = " x ".join(map(str, data.shape))
    text = f"{data.num_train:,} + {tests:,} samples of {shape}, {data.classes} classes"
    if data.domain is not None:
        text += f", {len(np.unique(data.domain))} domains"
    if data.text is not None:
        text += f", {data.text.shape[1]} captions each ({len(data.vocabulary):,} words)"
    return text


def states(
    root: str | None = None, configs: Sequence[dict[str, Any]] | None = None
) -> list[tuple[str, str, str]]:
    """(name, state, where it is or how to get it) of the data sets that `configs` describe, else of all.

    A state is "ready", "ready, read at first use" or "missing".
    """
    rows = []
    for config in [{"name": name} for name in DATASETS] if configs is None else configs:
        source: DataSource = DATASETS.build(config)
        if isinstance(source, FileSource) and root:
            source = dataclasses.replace(source, root=root)
        state = source.state()
        ready = "ready" if state.prepared else "ready, read at first use"
        options = (f"{key}={value}" for key, value in config.items() if key != "name")
        name = " ".join([source.name, *options])
        rows.append((name, ready if state.ready else "missing", state.where if state.ready else state.how))
    return rows
