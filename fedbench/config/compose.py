"""From overrides and the folder of YAMLs to a config, and what its choices are called."""

from __future__ import annotations

import functools
import logging
import pickle
import threading
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, cast

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedbench.config import groups, sources
from fedbench.core.errors import ConfigError, FedbenchError

log = logging.getLogger("fedbench")

SETTINGS = (
    "hardware",
    "runs_dir",
    "progress",
    "checkpoint",
    "wandb",
    "tensorboard",
    "mlflow",
    "save_models",
    "record",
    "force",
    "stale",
)


def key_of(override: str) -> str:
    """Return the key of an override: `++method.mu=1` is about method.mu."""
    return override.lstrip("+~").partition("=")[0]


def tell_of_doubles(overrides: Sequence[str]) -> None:
    """Log a line for each key that is set twice, such as `seed=1` and then `seed=2`: only the last one counts."""
    last = {key_of(text): text for text in overrides if "=" in text}
    for text in dict.fromkeys(overrides):
        if "=" in text and (counts := last[key_of(text)]) != text:
            log.warning("%s is not used: %s stands behind it", text, counts)


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Return the config that `python -m fedbench OVERRIDES` would run; also works inside a running job.

    Hydra takes a tenth of a second, most of it for its own part, which no run depends on. So Hydra composes the
    default once, in which each choice (`method=fedsac`) is put in its place; then values (`seed=3`) are set.

    Raises:
        HydraException, OmegaConfBaseException, ConfigError: an override of an unknown key, or a file that is no config.
    """
    sources.register()
    parsed = [_parsed(text) for text in overrides]
    for each in parsed:
        refuse_mixed(each, overrides)
    values = [each for each in parsed if _sets_a_value(each)]
    choices = [str(each.input_line) for each in parsed if not _sets_a_value(each)]
    if any(each.is_hydra_override() for each in parsed):  # its search path may lead to other files
        return suited(_by_hydra(overrides), overrides)
    try:
        config = _of_choices(choices)
        for each in values:
            OmegaConf.update(config, each.key_or_group, each.value(), merge=True)
    except (HydraException, OmegaConfBaseException, FedbenchError):  # the last: of a default that is not chosen
        config = _by_hydra(overrides)  # its message is of all overrides
    return suited(config, overrides)


def changes_nothing(override: str) -> bool:
    """Return whether an override changes no result; one of the hardware does by its precision, however that is set."""
    key = key_of(override)
    if key.partition(".")[0] == "hardware":
        return bool(compose([override]).hardware.precision == "float32")
    return key.partition(".")[0] in SETTINGS


@functools.lru_cache(maxsize=4096)
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_overrides([override])[0]


def suited(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Return `config` with the settings that a user's own data bring, unless `overrides` set them.

    Samples that name their clients bring partition=natural, and keys partition.KEY are then its keys. Tokens and series
    bring a network that reads them.
    """
    given = {key_of(text) for text in overrides}
    try:
        data = OmegaConf.to_container(config.dataset, resolve=True)
        if not isinstance(data, dict) or not data.get("path"):
            return config
        source = groups.registry("dataset").build(cast("dict[str, Any]", data))
        if source.owned and not given & {"partition", "experiment"}:
            keys = [key.removeprefix("partition.") for key in given if key.startswith("partition.")]
            natural = groups.plain_option("partition", "natural") | {key: config.partition[key] for key in keys}
            config.partition = OmegaConf.create(natural)
        if OmegaConf.is_interpolation(config.model, "name") and "dataset.model" not in given:
            network = source.network()
            with open_dict(config):
                config.dataset.model = network["name"]
                config.model = OmegaConf.merge(network, config.model)
    except (FedbenchError, OmegaConfBaseException):  # raised again where the run is built
        pass
    return config


def refuse_mixed(override: Override, others: Sequence[str]) -> None:
    """Refuse `method=3`, `method=null`, `~protocol.rounds`, and `method=[a,b]`, of which Hydra would merge b into a.

    The error says what to write. A key that is taken away has a value that neither the YAML nor the run's label names,
    unless one of the `others` sets it again (`+model.kinds=[...]`).
    """
    key, value = str(override.key_or_group), override.value()
    known = (*groups.REGISTRIES, *groups.SCHEMAS)
    gone = override.is_delete() and not any(text.startswith(f"+{key}=") for text in others)
    if gone and key.partition(".")[0] in known:
        raise ConfigError(f"~{key} would set {key} to a value that is shown nowhere; write {key}=VALUE (or =null)")
    if key.partition("/")[0] in known and isinstance(value, (int, float, NoneType)) and not override.is_delete():
        raise ConfigError(f"{override.input_line}: an option has a name; choose one: {key}=NAME")
    if key.partition("/")[0] in known and isinstance(value, list) and len(value) > 1:
        names = ",".join(map(str, value))
        raise ConfigError(
            f"{key}=[{names}] would mix them into one run; a run of each: -m {key}={names} (in Python fedbench.sweep)"
        )


def _sets_a_value(override: Override) -> bool:
    """Whether `override` is a plain `key=value` that sets a value and chooses no option of a group."""
    key = str(override.key_or_group)
    if override.type != OverrideType.CHANGE or override.is_sweep_override() or override.package is not None:
        return False
    return isinstance(override.value(), dict) or not ("/" in key or (groups.conf_dir() / key).is_dir())


def _of_choices(choices: Sequence[str]) -> DictConfig:
    """Return a new config with `choices`: the default one, in which each group is as with its choice alone.

    This is correct for choices such as `method=fedsac`, which change only their group's part of the config.
    """
    state = groups.conf_state()
    chosen = {choice.partition("=")[0]: choice for choice in choices}
    if len(chosen) < len(choices) or not {*groups.REGISTRIES, *groups.SCHEMAS}.issuperset(chosen):
        return cast("DictConfig", pickle.loads(_composed(state, *choices)))
    config = cast("DictConfig", pickle.loads(_composed(state)))
    for group, choice in chosen.items():
        config[group] = _part(state, group, choice)
    return config


@functools.lru_cache(maxsize=1024)
def _part(state: object, group: str, choice: str) -> DictConfig:
    """Return a group's part of the config with `choice`; cached until a YAML changes."""
    if (name := choice.partition("=")[2]) in groups.names(group):
        return OmegaConf.create(groups.plain_option(group, name))
    # Of a family, such as dir0.3; or Hydra refuses the name.
    return cast("DictConfig", pickle.loads(_composed(state, choice))[group])


@functools.lru_cache(maxsize=1024)
def _composed(_state: object, *choices: str) -> bytes:
    """Return the default config with `choices`, pickled, as copies from it are faster than deep copies.

    It is cached until a YAML changes.
    """
    return pickle.dumps(_by_hydra(choices))


ONE_HYDRA = threading.RLock()  # for what uses Hydra, whose state is the process's; threads wait for one another


def _by_hydra(overrides: Sequence[str]) -> DictConfig:
    with ONE_HYDRA:
        running = GlobalHydra.instance().hydra  # of the job that this is called in
        GlobalHydra.instance().clear()
        try:
            with hydra.initialize_config_dir(str(groups.conf_dir()), job_name="fedbench", version_base="1.3"):
                return hydra.compose(groups.CONFIG_NAME, list(overrides))
        finally:
            GlobalHydra.instance().hydra = running


def label(group: str, config: Mapping[str, Any], component: object = None) -> str:
    """Return the name in tables and folders of the choice that `config` makes in `group`, built as `component`.

    It is the component's own `label` if it has one (a family's label has its number), else the name with a preset's
    suffix and a base method other than FedAvg.
    """
    text = "_".join(str(config[key]) for key in ("name", "preset") if config.get(key))
    text = str(getattr(component, "label", text))
    base = config.get("base")
    if isinstance(base, Mapping) and (inner := label(group, base)) != "fedavg":
        text += f"({inner})"
    return text
