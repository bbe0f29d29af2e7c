"""The listings of config groups: methods, their parameters, and components whose YAMLs say it all."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbench.cli.listing import Listing, domains
from fedbench.config import groups
from fedbench.config.groups import SCHEMAS
from fedbench.core.errors import UnknownName


def methods() -> Listing:
    """List the methods, with what each says that it sends."""
    rows = []
    for name in groups.names("method"):
        method = groups.registry("method").build(groups.load("method", name))
        rows.append(
            {
                "method": name,
                "family": method.family,
                "paper": method.paper,
                "server → client": _sent(type(method), "Message"),
                "client → server": _sent(type(method), "Upload"),
            }
        )
    title = (
        "Methods, and the leaves that cross the network (* is the model; N clients, K classes, d features)"
    )
    return Listing(title, tuple(rows[0]), rows)


def _sent(method: type, what: str) -> str:
    """Return what the docstring of a method, or of the nearest base that says so, has at `Message:` or `Upload:`."""
    lines = (line.strip() for base in method.__mro__ for line in (base.__doc__ or "").splitlines())
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{what}:")), "-")


def presets() -> Listing:
    """What is set in each YAML of a method; of a variant, what differs from the method's own; of a part, apart."""
    rows = []
    for name in groups.names("method"):
        config = groups.load("method", name)
        usual = str(config["name"])
        variant = name != usual and usual in groups.names("method")
        parts = {
            key: value for key, value in config.items() if isinstance(value, Mapping) and "name" not in value
        }
        whole = {key: value for key, value in config.items() if key not in parts}
        changes = groups.different(config, groups.load("method", usual)) if variant else {}
        switched = {key: "null" if value is None else value for key, value in changes.items()}
        shown = groups.parameters(switched if variant else whole) or "-"
        said = domains(groups.registry("method").get(usual)).split(", ")
        own = ", ".join(text for text in said if text.partition(".")[0] not in parts)
        text = f"as {usual}, but {shown}" if variant else shown
        rows.append({"method": name, "parameters": text, "domains": "" if variant else own})
        for key, part in ({} if variant else parts).items():
            theirs = ", ".join(each.removeprefix(f"{key}.") for each in said if each.startswith(f"{key}."))
            rows.append(
                {"method": f"{name}, {key}.*", "parameters": groups.parameters(part), "domains": theirs}
            )
    title = "Parameters of the methods; any of them is a key: method.mu=1"
    return Listing(title, ("method", "parameters", "domains"), rows)


def components(group: str, title: str) -> Listing:
    """A table of a group whose YAMLs say it all."""
    columns = (group, "content", "parameters", "domains", "source")
    rows = []
    for name in groups.names(group):
        config = groups.load(group, name)
        told = groups.parameters(_own(group, config))
        row = {group: name, "parameters": told, "content": groups.about(group, name)}
        cls = _class(group, config)
        if group not in SCHEMAS:  # whose rows would all say the same
            row["domains"] = (domains(cls) if cls else "") or "-"
        rows.append({**row, "source": _source(cls, groups.file_of(group, name))})
    return Listing(title, tuple(column for column in columns if column in rows[0]), rows)


def _own(group: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the values that every config of the group has unless it says otherwise."""
    schema = SCHEMAS.get(group)
    return config if schema is None else groups.different(config, dataclasses.asdict(schema()))


def _class(group: str, config: Mapping[str, Any]) -> type | None:
    """The class behind a component; None where a schema or another file's component is (model=auto)."""
    try:
        found: type = groups.registry(group).get(str(config["name"]))
    except (KeyError, UnknownName):
        return None
    return found


def _source(cls: type | None, file: Path) -> str:
    """The file of a component's class, else the YAML."""
    if cls is None:
        return file.relative_to(groups.conf_dir().parent).as_posix()
    return Path(inspect.getfile(cls)).relative_to(Path(__file__).resolve().parents[2]).as_posix()
