"""Configs without a file in conf/: families (`partition=dir0.1`), methods inside methods, other packages' files.

Hydra asks its sources in turn, this one first: it refuses a name that two packages have, and leaves a name with a file
in conf/ to Hydra; but for methods, whose YAMLs hold `tune`, which is no part of a run.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from fedbench.config import groups

NESTED = re.compile(r"^method(/base)+(?=/|$)")  # group of the method inside a method, at any depth


class VirtualSource(ConfigSource):
    """Serves `partition/dir0.1` from `partition/dir.yaml`, `method/base/ditto` from `method/ditto.yaml`."""

    @staticmethod
    def scheme() -> str:
        """Hydra's name for this kind of source."""
        return "fedbench"

    def available(self) -> bool:
        """Whether the conf/ folder exists."""
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        """Whether `config_path` is a group of components, or that of a method inside a method."""
        return _outer(config_path) in groups.REGISTRIES

    def is_config(self, config_path: str) -> bool:
        """Whether a file of another place or a family stands behind `config_path`.

        Raises:
            ConfigError: files of two packages do.
        """
        path = _outer(config_path)
        if (file := groups.find(*_split(path))) is not None:
            return file.parent.name == "method" or file != Path(self.path) / f"{config_path.removesuffix('.yaml')}.yaml"
        return groups.member(*_split(path)) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        """The file's content, a family's with the number from the name placed in the family's field."""
        path = _outer(config_path)
        member = groups.member(*_split(path))
        file = groups.find(*_split(path)) if member is None else member[0]
        config = groups.load_option(file or Path(self.path) / f"{path}.yaml")
        if member is not None:
            OmegaConf.update(config, member[1], member[2])
        # Its package is the group's own.
        return ConfigResult(provider=self.provider, path=self.full_path(), config=config, header={"package": None})

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The options of a group of components, of a nested one those of the outer; nothing else."""
        if not self.is_group(config_path) or results_filter == ObjectType.GROUP:
            return []
        return groups.names(_outer(config_path))


class VirtualSearchPath(SearchPathPlugin):
    """Puts the virtual source before the files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it builds a search path."""
        search_path.prepend("fedbench", f"{VirtualSource.scheme()}://{groups.conf_dir()}")


def register() -> None:
    """Make Hydra use the source and the configs their functions; calling it again changes nothing."""
    register_resolvers()
    plugins: Any = Plugins.instance()
    plugins.register(VirtualSource)
    plugins.register(VirtualSearchPath)


def _split(path: str) -> tuple[str, str]:
    group, _, name = path.rpartition("/")
    return group, name


def _outer(config_path: str) -> str:
    return NESTED.sub("method", config_path.removesuffix(".yaml"))


def _choices() -> str:
    chosen = (*groups.REGISTRIES, *groups.SCHEMAS, "experiment")
    return "\n".join(f"{group}: {', '.join(groups.names(group))}" for group in chosen)


def register_resolvers() -> None:
    """Register the functions that configs may call; a second call changes nothing.

    fedbench.choices: the options of each group, for --help.
    fedbench.unique: a name for the folder that Hydra insists on for a sweep (the runs have their own).
    """

    def unique() -> str:
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"

    OmegaConf.register_new_resolver("fedbench.choices", _choices, replace=True)
    OmegaConf.register_new_resolver("fedbench.unique", unique, use_cache=True, replace=True)
