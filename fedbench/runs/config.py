"""The typed, built components of one run, and the key of its result."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedbench.config import groups
from fedbench.config.compose import label
from fedbench.config.fields import typed
from fedbench.config.groups import REGISTRIES, SCHEMAS
from fedbench.config.schema import ADDED, KEYED, RETIRED, TASKS, HardwareConfig, ProtocolConfig, SettingsConfig
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import DataSource
from fedbench.data.partitions.base import PartitionSpec
from fedbench.sample_metrics import check_measures

if TYPE_CHECKING:
    from fedbench.engine.method import Method
    from fedbench.engine.recording import Recorder


def canonical(value: Any) -> Any:
    """Plain JSON for a component: its class and fields, nested ones too."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: canonical(f.metadata.get(KEYED, lambda plain: plain)(getattr(value, f.name)))
            for f in dataclasses.fields(value)
            if f.init and not (f.metadata.get(ADDED) and getattr(value, f.name) == f.default)
        }
        return {**getattr(value, RETIRED, {}), **fields, "class": type(value).__name__}
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


NOT_RESULT = {  # fields that change no result; what is in a file is in the component's label
    "dataset": ("root", "download", "model", "path"),
    "partition": ("path",),
    "model": ("weights", "download"),
}


@dataclass(frozen=True)
class RunConfig:
    """One run: the resolved config, and every component that it describes, built and validated.

    Another run is built from another plain config: see `changed`.
    """

    plain: Mapping[str, Any]  # as composed, and as saved with the run
    dataset: DataSource
    partition: PartitionSpec
    model: Any
    method: Method
    protocol: ProtocolConfig
    hardware: HardwareConfig
    settings: SettingsConfig

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Group -> a table's name for its choice, such as "fedcollab(ditto)" or "dir0.1"."""
        return {group: label(group, self.plain[group], getattr(self, group)) for group in (*REGISTRIES, *SCHEMAS)}

    @cached_property
    def protocol_changes(self) -> str:
        """Where the protocol differs from its preset, such as `rounds=3, optimizer.lr=0.5`; "" if nowhere."""
        return groups.changed("protocol", self.plain["protocol"])

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits of a hash over all that determines the run's result, and its labels.

        It is built from the components' fields. So it does not depend on the order of keys, on whether a default is
        written out, on an `added` field at its default, or on a `retired` field.
        Hardware only counts by a precision other than float32; folders, logging and display are left out.
        """
        content: dict[str, Any] = {"seed": self.seed}
        if self.partition_seed != self.seed:
            content["partition_seed"] = self.partition_seed
        if self.reference_seed != self.seed and self.labels["method"] != "local":
            content["reference_seed"] = self.reference_seed
        if self.settings.reference_lr not in (None, self.protocol.optimizer.lr) and self.labels["method"] != "local":
            content["reference_lr"] = self.settings.reference_lr
        if self.hardware.precision != "float32":
            content["precision"] = self.hardware.precision
        for group in (*REGISTRIES, "protocol"):
            fields = canonical(getattr(self, group))
            hidden = NOT_RESULT.get(group, ())
            content[group] = {key: value for key, value in fields.items() if key not in hidden}
            content[group]["label"] = self.labels[group]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def seed(self) -> int:
        """Keys everything random in the run."""
        return self.settings.seed

    @property
    def partition_seed(self) -> int:
        """The seed that keys the partition: the run's unless the config fixes one for several runs."""
        fixed = self.settings.partition_seed
        return self.seed if fixed is None else fixed

    @property
    def reference_seed(self) -> int:
        """The seed of the Local run for IPR and RSD, except its partition: the run's seed unless given.

        With the run's seed Local has the same initial weights and batches, so a client that trains alone ties with it.
        With another seed such a client gains or loses by chance.
        """
        given = self.settings.reference_seed
        return self.seed if given is None else given

    def changed(self, **values: Any) -> RunConfig:
        """The run with other `values` of keys of its plain config, whole groups among them.

        Raises:
            UnknownName, ConfigError: see `resolve`.
        """
        kept = {group: getattr(self, group) for group in REGISTRIES if group not in values}
        return from_plain({**self.plain, **values}, kept)

    @property
    def local_values(self) -> dict[str, Any]:
        """The values of the Local run for IPR and RSD that differ from this run's; see `changed`."""
        values: dict[str, Any] = {
            "method": {"name": "local"},
            "reference_seed": None,
            "force": False,
            "save_models": False,
            "record": [],
        }
        if self.reference_seed != self.seed:
            values |= {"seed": self.reference_seed, "partition_seed": self.partition_seed}
        if (rate := self.settings.reference_lr) is not None:
            optimizer = {**self.plain["protocol"]["optimizer"], "lr": rate}
            values |= {"protocol": {**self.plain["protocol"], "optimizer": optimizer}, "reference_lr": None}
        return values

    @cached_property
    def recorders(self) -> tuple[Recorder, ...]:
        """The recorders of the run, which are no part of its key."""
        if not self.settings.record:
            return ()
        from fedbench import recorders  # which knows methods that have something to look at

        return recorders.parse(self.settings.record, self.protocol.rounds)

    @cached_property
    def local(self) -> RunConfig | None:
        """The Local run that this one is compared with.

        It is None for Local itself, if no test sample is scored, and with reference=none.
        """
        unread = self.settings.reference == "none" or self.protocol.test.sets == "validation"
        alone = unread or self.labels["method"] == "local"
        return None if alone else self.changed(**self.local_values)


def resolve(config: DictConfig) -> RunConfig:
    """Check a composed config and build its components.

    Raises:
        UnknownName: a name or key that does not exist, with the nearest ones.
        ConfigError: a value of the wrong type, an impossible or a missing value.
    """
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = error.full_key or "the config"
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}; give a value: {key}=VALUE") from error
    return from_plain(cast("dict[str, Any]", plain))


def from_plain(plain: Mapping[str, Any], kept: Mapping[str, Any] | None = None) -> RunConfig:
    """`resolve` for a plain nested dict, such as the one saved with a run or an altered copy of it.

    The components in `kept`, by group, need not be built again.
    """
    sections, kept = (*REGISTRIES, *SCHEMAS), kept or {}
    for group in sections:
        if not isinstance(plain.get(group), Mapping):
            raise ConfigError(f"{group}: no option chosen; add {group}=NAME")
    missing = [group for group in REGISTRIES if group not in kept]
    made = {group: groups.registry(group).build(plain[group]) for group in missing}
    schemas = {group: _schema(group, json.dumps(plain[group])) for group in SCHEMAS}
    rest = {key: value for key, value in plain.items() if key not in sections}
    settings = _schema("settings", json.dumps(rest))
    if schemas["protocol"].score == "own":
        from fedbench.engine.method import own_score

        method = {**kept, **made}["method"]
        schemas["protocol"] = replace(schemas["protocol"], score=own_score(method, schemas["protocol"])[0])
    run = RunConfig(plain, **kept, **made, **schemas, settings=settings)
    _ = settings.record and run.recorders  # refuses what there is none of
    regression = run.dataset.task == TASKS[1]
    check_measures(run.protocol.of_scores, regression=regression)
    if len(run.model.networks) > 1 or regression:
        from fedbench.engine.setup import check_fits

        check_fits(run.method, run.model.networks.values(), regression=regression)
    return run


@functools.lru_cache(maxsize=256)  # a plan asks for the same few thousands of times, and each takes milliseconds
def _schema(group: str, values: str) -> Any:
    """Return the schema of `group` with values given as JSON; unlike a component it depends on nothing else."""
    if group == "settings":
        return typed(SettingsConfig, json.loads(values), "the config")
    return typed(SCHEMAS[group], json.loads(values), group)
