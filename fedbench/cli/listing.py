"""The tables behind `python -m fedbench.list`: what can be chosen, with what it is and what it needs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fedbench.config import groups, yaml_files
from fedbench.config.domain import DOMAIN, Component
from fedbench.config.groups import SCHEMAS
from fedbench.core.errors import UnknownName, unknown

Row = dict[str, str]
HIDDEN = ("name", "preset", "defaults")  # keys of a YAML that are no parameters
METHOD_COLUMNS = ("method", "family", "paper", "server → client", "client → server", "bytes ↓ / ↑")


@dataclass(frozen=True)
class Listing:
    """A table: columns in order, and rows that have all of them."""

    title: str
    columns: tuple[str, ...]
    rows: list[Row]
    here: tuple[str, ...] = ()  # columns that depend on this machine

    def markdown(self) -> str:
        """As a table of Markdown, the same on every machine."""
        columns = tuple(column for column in self.columns if column not in self.here)
        lines = [columns, ("---",) * len(columns)]
        lines += [tuple(row[column].replace("|", "\\|") for column in columns) for row in self.rows]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def listing(kind: str) -> Listing:
    """The table called `kind`.

    Raises:
        UnknownName: no such table.
    """
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    return KINDS[kind]()


def options(group: str) -> list[str]:
    """The YAMLs of a config group."""
    return sorted(file.stem for file in (groups.conf_dir() / group).glob("*.yaml"))


def load_option(group: str, name: str) -> dict[str, Any]:
    """The content of conf/<group>/<name>.yaml with its defaults list resolved, as Hydra does.

    Composing with Hydra takes a fifth of a second each: too long for a table of fifty.
    """
    from omegaconf import OmegaConf

    config = cast("dict[str, Any]", OmegaConf.to_container(yaml_files.load(_file(group, name))))
    merged = OmegaConf.create({})
    for entry in config.pop("defaults", ["_self_"]):
        if entry == "_self_":
            merged.merge_with(config)
        elif isinstance(entry, Mapping):
            merged.merge_with({key: load_option(group, value) for key, value in entry.items()})
        else:
            merged.merge_with(load_option(group, str(entry)))
    return cast("dict[str, Any]", OmegaConf.to_container(merged, resolve=False))


def about(group: str, name: str) -> str:
    """The comment that opens the YAML."""
    lines = []
    for line in _file(group, name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return " ".join(lines)


def _file(group: str, name: str) -> Path:
    file = groups.conf_dir() / group / f"{name}.yaml"
    if not file.is_file():
        raise unknown(group, name, options(group))
    return file


def parameters(config: Mapping[str, Any], prefix: str = "") -> str:
    """`key=value` of everything that is set; a component inside by its name, empty values left out."""
    words = []
    for key, value in config.items():
        if key in HIDDEN or value in (None, [], ""):
            continue
        if isinstance(value, Mapping):
            words.append(
                f"{key}={value['name']}" if "name" in value else parameters(value, f"{prefix}{key}.")
            )
        else:
            words.append(f"{prefix}{key}={_plain(value)}")
    return ", ".join(word for word in words if word)


def domains(cls: type, prefix: str = "") -> str:
    """`key domain` of each of the class's parameters that has one, those of a schema inside too."""
    words = []
    for each in dataclasses.fields(cls):
        domain, inner = each.metadata.get(DOMAIN), cast("Any", each.default_factory)
        if isinstance(inner, type) and issubclass(inner, Component):
            words.append(domains(inner, f"{prefix}{each.name}."))
        elif domain is not None and domain.short:
            null = " or null" if "None" in str(each.type) else ""
            words.append(f"{prefix}{each.name} {domain.short}{null}")
    return ", ".join(word for word in words if word)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- the tables


def _methods() -> Listing:
    from fedbench.cli.traffic import probe

    rows = []
    for name in options("method"):
        config = load_option("method", name)
        method = groups.registry("method").build(config)
        found = probe(method)
        once = "; also before round 0" if found.prepares else ""
        rows.append(
            {
                "method": name,
                "family": method.family,
                "paper": method.paper,
                "server → client": "; then ".join(found.down) + once,
                "client → server": "; then ".join(found.up),
                "bytes ↓ / ↑": f"{found.down_ratio:.2f} / {found.up_ratio:.2f}",
            }
        )
    return Listing(
        "Methods; bytes a round relative to FedAvg (N clients, K classes, d features)", METHOD_COLUMNS, rows
    )


def _presets() -> Listing:
    """What is set in each YAML of a method; of a variant, what differs from the method's own; of a part, apart."""
    rows = []
    for name in options("method"):
        config = load_option("method", name)
        usual = str(config["name"])
        variant = name != usual and usual in options("method")
        parts = {
            key: value for key, value in config.items() if isinstance(value, Mapping) and "name" not in value
        }
        whole = {key: value for key, value in config.items() if key not in parts}
        changes = _different(config, load_option("method", usual)) if variant else {}
        switched = {key: "null" if value is None else value for key, value in changes.items()}
        shown = parameters(switched if variant else whole) or "-"
        said = domains(groups.registry("method").get(usual)).split(", ")
        own = ", ".join(text for text in said if text.partition(".")[0] not in parts)
        text = f"as {usual}, but {shown}" if variant else shown
        rows.append({"method": name, "parameters": text, "domains": "" if variant else own})
        for key, part in ({} if variant else parts).items():
            theirs = ", ".join(each.removeprefix(f"{key}.") for each in said if each.startswith(f"{key}."))
            rows.append({"method": f"{name}, {key}.*", "parameters": parameters(part), "domains": theirs})
    title = "Parameters of the methods; any of them is a key: method.mu=1"
    return Listing(title, ("method", "parameters", "domains"), rows)


def _datasets() -> Listing:
    rows = []
    for name in options("dataset"):
        source = groups.registry("dataset").build(load_option("dataset", name))
        state = source.state()
        ready = "ready" if state.prepared else "ready, read at first use"
        rows.append(
            {
                "data set": name,
                "content": about("dataset", name),
                "state": ready if state.ready else "missing",
                "where": state.where or "-",
                "how to get it": state.how,
            }
        )
    columns = ("data set", "state", "where", "content", "how to get it")
    return Listing("Data sets", columns, rows, here=("state", "where"))


def _tables() -> Listing:
    from fedbench.tables import spec

    rows = []
    for name in spec.names():
        table = spec.load(name)
        published = sum(
            table.published(row, column, metric) is not None
            for row in table.rows
            for column in table.columns
            for metric in table.metrics
        )
        used = dict.fromkeys(
            text.partition("=")[2]
            for column in table.columns
            for text in (*table.base, *column.overrides)
            if text.startswith("dataset=")
        )
        ready = [d for d in used if groups.registry("dataset").build(load_option("dataset", d)).state().ready]
        unsupported = sum(
            bool(row.unsupported or column.unsupported) for row in table.rows for column in table.columns
        )
        size = f"{len(table.rows)} × {len(table.columns)}"
        rows.append(
            {
                "table": name,
                "content": table.title,
                "rows × columns": size + (f", {unsupported} cannot be run" if unsupported else ""),
                "published values": str(published),
                "seeds": str(table.seeds),
                "data": ", ".join(used),
                "ready": ", ".join(ready) or "-",
            }
        )
    columns = ("table", "content", "rows × columns", "published values", "seeds", "data", "ready")
    return Listing("Tables: make reproduce-NAME, - for _", columns, rows, here=("ready",))


def _components(group: str, title: str) -> Callable[[], Listing]:
    """A table of a group whose YAMLs say it all."""

    def table() -> Listing:
        columns = (group, "content", "parameters", "domains", "source")
        rows = []
        for name in options(group):
            config = load_option(group, name)
            row = {group: name, "parameters": parameters(_own(group, config)), "content": about(group, name)}
            cls = _class(group, config)
            if group not in SCHEMAS:  # whose rows would all say the same
                row["domains"] = (domains(cls) if cls else "") or "-"
            rows.append({**row, "source": _source(cls, _file(group, name))})
        return Listing(title, tuple(column for column in columns if column in rows[0]), rows)

    return table


def _own(group: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the values that every config of the group has unless it says otherwise."""
    schema = SCHEMAS.get(group)
    return config if schema is None else _different(config, dataclasses.asdict(schema()))


def _different(config: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        plain = usual.get(key)
        if isinstance(value, Mapping) and isinstance(plain, Mapping):
            found[key] = _different(value, plain)
        elif value != (list(plain) if isinstance(plain, tuple) else plain):
            found[key] = value
    return found


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


KINDS: dict[str, Callable[[], Listing]] = {
    "methods": _methods,
    "presets": _presets,
    "datasets": _datasets,
    "partitions": _components(
        "partition", "Partitions; a number behind a family's name is its parameter: dir0.1"
    ),
    "models": _components("model", "Models"),
    "protocols": _components("protocol", "Protocols; parameters that differ from the schema's defaults"),
    "tables": _tables,
}
