"""`python -m fedbench prepare`: download, verify and prepare data sets, or show what is here.

    python -m fedbench prepare mnist cifar10              fetch what is missing, prepare it for runs
    python -m fedbench prepare cub text=true --root DIR   options of a data set follow its name
    python -m fedbench prepare --check                    the state of every data set
    python -m fedbench prepare --check cub text=true      of these; the exit code is 1 if one is missing

Downloads resume where they broke off. Without --root, data goes to the environment's FEDBENCH_DATA, else to
~/.cache/fedbench/data; runs look there too (with --root, give them dataset.root=DIR).
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from fedbench.cli.program import report
from fedbench.config.arguments import CommandParser
from fedbench.core.errors import ConfigError, FedbenchError, Report, silent
from fedbench.data.dataset import Dataset, DataSource
from fedbench.data.datasets import DATASETS
from fedbench.data.files import FileSource
from fedbench.runs.progress import FileProgress, Output, human_seconds


def parse_request(words: Sequence[str]) -> list[dict[str, Any]]:
    """Configs from a command line: names, each followed by options of its own (`cub text=true size=32 mnist`).

    Raises:
        ConfigError: an option comes before any name, or cannot be read.
        UnknownName: no such data set.
    """
    chosen: list[tuple[str, list[str]]] = []
    for word in words:
        if "=" not in word:
            DATASETS.get(word)
            chosen.append((word, []))
        elif not chosen:
            raise ConfigError(f"'{word}' is an option without a data set before it; for example: cub text=true")
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
    """Fetch missing files (into `root`), prepare the data, and return one line on it.

    Raises:
        FedbenchError: the files cannot be fetched, or are not the published ones.
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
    if data.names:
        text += f", {len(data.names)} clients"
    elif data.domain is not None:
        text += f", {len(np.unique(data.domain))} domains"
    if data.text is not None:
        text += f", {data.text.shape[1]} captions each ({len(data.vocabulary):,} words)"
    return text


def check(console: Console, root: str | None, configs: Sequence[dict[str, Any]]) -> int:
    """Print the state of the requested data sets, else of all; return 1 if a requested one is missing."""
    table, missing = Table("data set", "state", "where, or how to get it", box=None), False
    for config in configs or [{"name": name} for name in DATASETS]:
        source: DataSource = DATASETS.build(config)
        if isinstance(source, FileSource) and root:
            source = dataclasses.replace(source, root=root)
        state = source.state()
        ready = "ready" if state.prepared else "ready, read at first use"
        options = (f"{key}={value}" for key, value in config.items() if key != "name")
        name = " ".join([source.name, *options])
        table.add_row(name, ready if state.ready else "missing", state.where if state.ready else state.how)
        missing |= not state.ready
    console.print(table)
    return int(bool(configs) and missing)


def prepare_command(arguments: Sequence[str]) -> int:
    """Download data sets, or show which are here; return 2 if a download failed, 1 if one is missing."""
    parser = CommandParser("prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets, each followed by its options key=value")
    parser.add_argument("--root", help="folder to download to; runs then need dataset.root=DIR")
    parser.add_argument("--check", action="store_true", help="show the state of these, or of every data set, and stop")
    given = parser.parse_args(arguments)
    out = Output(soft_wrap=True)
    if not given.names and not given.check:
        parser.print_help()
        return 2
    configs = parse_request(given.names)
    if given.check:
        return check(out, given.root, configs)
    return max(_prepared(config, given.root, out) for config in configs)


def _prepared(config: dict[str, Any], root: str | None, out: Console) -> int:
    """Prepare one data set; the others are prepared even if it cannot be."""
    start = time.monotonic()
    try:
        with closing(FileProgress()) as shown:
            line = prepare(config, root, shown)
    except FedbenchError as error:
        return report(error)
    out.print(f"{line} ({human_seconds(time.monotonic() - start)})", highlight=False)
    return 0
