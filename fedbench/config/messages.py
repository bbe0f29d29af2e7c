"""One-line messages for everything that a user can type wrong: the reason and the nearest valid names."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedbench.config import groups
from fedbench.config.groups import REGISTRIES, registry
from fedbench.core.errors import CPU_MEMORY, FedbenchError, is_out_of_memory, nearest

READERS = ("hydra.", "omegaconf.", "yaml.", "antlr4.")  # of what a user writes
SHOWN = 4  # options that have a key
OK, CRASHED, REFUSED, INCOMPLETE = 0, 1, 2, 3  # exit codes; the last: not all that was asked for is there


def explained(error: Exception, job: str = "") -> tuple[int, str]:
    """Return (exit code, text): one line if the user can act on the error, else a traceback.

    `job` says which run of a sweep failed. FEDBENCH_DEBUG=1 asks for tracebacks of everything.
    """
    line = one_line(error)
    code = CRASHED if line is None else REFUSED
    if line is None or os.environ.get("FEDBENCH_DEBUG") == "1":
        return code, "".join(traceback.format_exception(error)).rstrip()
    return code, f"error: {job}{job and ': '}{line}"


def one_line(error: BaseException) -> str | None:
    """Return the message for `error`, or None if it is a defect of the program and needs a traceback."""
    if isinstance(error, (FedbenchError, OSError)) and _stands_nowhere():  # whatever else it says follows from that
        return "the working directory is gone; change to another one"
    if isinstance(error, FedbenchError):
        return _flat(str(error))
    if isinstance(error, MissingConfigException):
        return _unknown_option(error)
    if isinstance(error, OverrideParseException):
        return _unparsable(error)
    if isinstance(error, ConfigCompositionException):
        return _composition(error)
    if isinstance(error, (HydraException, OmegaConfBaseException)) or (
        isinstance(error, (ValueError, RuntimeError))
        and _raised_by(error, ("hydra.", "submitit."))  # `method=3`, a wrong plugin, no Slurm
        and not _by_others(error)
    ):
        return _flat(str(error))
    if isinstance(error, yaml.YAMLError):
        return f"not valid YAML: {_flat(str(error))}"  # it names the file and the line
    if isinstance(error, UnicodeDecodeError) and _raised_by(error, ("codecs",)):
        before = error.object[max(0, error.start - 30) : error.start].decode(errors="replace")
        return f"{_being_read(error) or 'a file'} is not UTF-8 behind {before!r}; save it as UTF-8"
    if isinstance(error, OSError):
        return _system(error)
    return _by_others(error)


def _by_others(error: BaseException) -> str | None:
    """Return the message for an error of other libraries or of the interpreter."""
    if type(error).__module__.startswith(("submitit.", "joblib.externals.loky", "ray.")):
        return f"a job ended without a result (the same command resumes): {_flat(str(error))[:300]}"
    if isinstance(error, RecursionError) and _raised_by(error, READERS):
        return "a value is nested too deeply to be read"
    if is_out_of_memory(error):
        reason = _flat(str(error).rpartition(CPU_MEMORY)[2])
        return f"not enough memory: {reason}{reason and '; '}choose smaller sizes"
    return None


def _system(error: OSError) -> str | None:
    """Return the message for an error of the operating system."""
    if error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"  # a folder that may not be written
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}: make room; the same command resumes"
    return None


def _stands_nowhere() -> bool:
    try:
        return not Path.cwd()
    except FileNotFoundError:
        return True


def _raised_by(error: BaseException, packages: tuple[str, ...]) -> bool:
    """Whether the function that raised `error` belongs to one of `packages`."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [module for module in modules if module != "abc"]  # an isinstance is of the function that asks
    return bool(modules) and modules[-1].startswith(packages)


def _being_read(error: BaseException) -> str:
    """Return the text file that a function in the traceback of `error` has open."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    opened = (value for frame in frames for value in frame.f_locals.values() if isinstance(value, io.TextIOWrapper))
    return next((str(file.name) for file in opened), "")


def _unknown_option(error: MissingConfigException) -> str:
    """`method=fedavgg`: Hydra knows the group and its options."""
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return _flat(str(error))
    if not error.options:
        return f"the config group '{group}' has no option '{name}'"
    if group == "hydra/launcher" and name.startswith("submitit_"):
        return f"{group}={name} asks for submitit: pip install 'fedbench-harness[slurm]'"
    found = f"unknown {group} '{name}'; nearest: {nearest(name, error.options)}"
    outer = group.partition("/")[0]
    if outer not in REGISTRIES:
        return found
    if text := groups.without_yaml(outer, name):
        return text
    if outer == "partition" and re.fullmatch(r"dir[a-z]*-?[\d.]+", name):
        return f"{found}; dir takes a positive number, as in partition=dir0.1"
    if outer == "dataset":
        found += "; your own: dataset=table for .csv and .parquet, npz for arrays, images for folders of images"
    return f"{found}; a new one takes conf/{outer}/{name}.yaml and, for its class, {registry(outer).line}"


def _unparsable(error: OverrideParseException) -> str:
    """`fedavg`, `method=[`: not GROUP=OPTION or key=value."""
    override = error.override
    if re.fullmatch(r"[\w./@]+", override):
        found = f"'{override}' is not of the form GROUP=OPTION or key=value"
        owner = next((group for group in REGISTRIES if override in groups.names(group)), None)
        return f"{found}; for example {f'{owner}={override}' if owner else 'method=fedavg, without spaces or dashes'}"
    reason = re.sub(r"\s*See https?://\S+.*", "", _flat(error.message), flags=re.DOTALL)
    reason = re.sub(r"mismatched input '<EOF>' expecting .*", "it ends too early", reason)
    key, _, value = override.partition("=")
    quoted = shlex.quote(f'{key}="{value}"')
    # A text, such as a path, whose signs mean something to Hydra.
    plain = not {*value} & {*'[]{}"'} and ({*value} & {*"/~()=&#'"} or not value.isascii())
    remedy = f"quote it twice: {quoted}" if plain else "close each bracket and quote, and take no sign that opens none"
    return f"cannot read {override!r}: {reason}; {remedy}"


def _composition(error: ConfigCompositionException) -> str:
    text, cause = str(error), error.__cause__
    several = r"Ambiguous value for argument '(.+?)'\s|Sweep parameters '(.+)' requires --multirun"
    if match := re.match(several, text):
        sweep = "add -m to the command, python -m fedbench -m ..., or call fedbench.sweep"
        return f"'{match[1] or match[2]}' asks for several runs; {sweep}"
    if match := re.search(r"Could not override '([^']+)'\.", text):
        if isinstance(cause, OmegaConfBaseException):
            return _unknown_key(match[1], cause)
        outer, _, inner = match[1].partition("/")  # `method=fedavg method/base=ditto`: the group exists
        why = f"the chosen {outer} takes no '{inner}'" if inner else "nothing in the config uses that group"
        return f"'{match[1]}' has no place here: {why}"
    return _flat(text if cause is None else f"{text} {cause}")


def _unknown_key(key: str, cause: OmegaConfBaseException) -> str:
    """`protocol.round=3`: the cause holds the node that lacks the key."""
    parent = cause.parent_node
    if not isinstance(parent, DictConfig):
        return f"unknown key '{key}'"
    where = (cause.full_key or "").rpartition(".")[0]
    missing = str(cause.key) if cause.key is not None else key.rpartition(".")[2]
    prefix = f"{where}." if where else ""
    if where in REGISTRIES and OmegaConf.is_interpolation(parent, "name"):  # model=auto
        named = f"{where}={parent['name']}"
        return f"unknown key '{key}': keys of a model need the model named first: {named} {key}=..."
    if where in REGISTRIES and set(parent) == {"name"}:
        return f"unknown key '{key}': {where}={parent['name']} has none, leave it out"
    near = _nearest(parent, prefix, missing, alone="." not in key)
    return f"unknown key '{key}'; {f'nearest: {near}' if near else 'none is near, --cfg job shows all'}"


def _nearest(parent: DictConfig, prefix: str, missing: str, *, alone: bool) -> str:
    """Return the keys of that name in the config; else those in options that are not chosen, of a given group only.

    Else return keys with a similar name, of the same group or of the whole config; "" if there is none.
    """
    # OmegaConf says in public where a node stands, but not in what; composing the config again would take 0.1 s.
    root = parent._get_root()
    keys = sorted(_keys(OmegaConf.to_container(root)), key=lambda key: key.count("."))
    if named := [key for key in keys if key.rpartition(".")[2] == missing]:
        return ", ".join(named)
    if (elsewhere := _elsewhere(missing)) and (alone or elsewhere.startswith(f"{prefix}{missing} with")):
        return elsewhere
    by_name = {str(key): f"{prefix}{key!s}" for key in parent if key != "hydra"}
    if alone:
        by_name |= {key.rpartition(".")[2]: key for key in reversed(keys)}
    near = nearest(missing, by_name).split(", ")
    return "" if near[-1] == "..." else ", ".join(by_name.get(name, name) for name in near)


def _elsewhere(missing: str) -> str:
    """`method.mu with method=fedprox|moon`: the keys of that name in any option of a group."""
    found: dict[str, list[str]] = {}
    for group in reversed(REGISTRIES):
        for name in sorted({*groups.names(group)} - {*groups.troubles(group)}):
            for key in _keys(groups.plain_option(group, name), f"{group}."):
                if key.rpartition(".")[2] == missing:
                    found.setdefault(f"{key} with {group}=", []).append(name)
    return ", ".join(key + "|".join(names[:SHOWN]) for key, names in found.items())


def _keys(config: object, prefix: str = "") -> Iterator[str]:
    """Return every key of a plain config; keys of its groups are `group.key`."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key != "hydra":
                yield f"{prefix}{key}"
                yield from _keys(value, f"{prefix}{key}.")


def _flat(text: str) -> str:
    """Return several lines as one, without the lists of folders and field types that Hydra adds at the end."""
    lines = (line.strip() for line in text.splitlines())
    kept = [line for line in lines if line and not re.match(r"(full_key|object_type|reference_type)", line)]
    return " ".join(kept)
