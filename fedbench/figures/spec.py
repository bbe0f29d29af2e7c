"""A figure as data: conf/figure/NAME.yaml says what it needs, what it mirrors, and what the paper claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fedbench.config import groups, yaml_files
from fedbench.config.registry import typed
from fedbench.core.errors import ConfigError, unknown
from fedbench.tables.account import PAPERS
from fedbench.tables.parts import ColumnSpec, MetricSpec, RowSpec
from fedbench.tables.spec import TableSpec

PAPER, OPEN, QUICK = "paper", "open", "quick"
SETTINGS = (PAPER, OPEN, QUICK)
ALONE = ({"label": "-"},)


@dataclass(frozen=True)
class Setting:
    """The runs' data, protocol and seeds at one scale."""

    overrides: tuple[str, ...] = ()
    seeds: int = 1
    rows: tuple[str, ...] = ()  # labels; none: all
    columns: tuple[str, ...] = ()
    data: str = ""  # what the caption says of data and protocol


@dataclass(frozen=True)
class FigureSpec:
    """A figure of a paper: rows and columns of runs, as a table's, and what is read of them."""

    name: str
    paper: str  # a key of PAPERS
    figure: str  # its number there
    title: str
    claim: str  # what the paper says that it shows
    settings: dict[str, Any]  # paper: as published; open: on data that anyone has; quick: minutes
    base: tuple[str, ...] = ()  # overrides of every run, before the column's and the row's
    rows: tuple[RowSpec, ...] = ()
    columns: tuple[ColumnSpec, ...] = ()
    reads: dict[str, Any] = field(default_factory=dict)  # fedbench.figures.read
    runs: bool = True  # false: drawn from data and partitions, nothing is trained
    note: str = ""  # what the caption adds

    @property
    def mirrors(self) -> str:
        """As "FedSaC, Figure 1"."""
        return f"{PAPERS[self.paper]}, Figure {self.figure}"

    def setting(self, name: str) -> Setting:
        """The setting at a scale.

        Raises:
            UnknownName: the figure has no such setting.
        """
        if name not in self.settings:
            raise unknown(f"scale of figure {self.name}", name, self.settings)
        return cast("Setting", self.settings[name])

    def table(self, name: str) -> TableSpec:
        """The runs of a setting as a table, for the tables' planner."""
        setting = self.setting(name)
        whole = TableSpec(
            self.name,
            f"{self.mirrors}: {self.title}",
            "",
            "",
            (MetricSpec("acc"),),
            self.rows,
            self.columns,
            (*self.base, *setting.overrides),
            setting.seeds,
        )
        return whole.only(setting.rows, setting.columns)


def names() -> list[str]:
    """Every figure that has a YAML."""
    return sorted(file.stem for file in (groups.conf_dir() / "figure").glob("*.yaml"))


def load(name: str) -> FigureSpec:
    """The figure in conf/figure/`name`.yaml; fedsac-f1 is fedsac_f1.

    Raises:
        UnknownName: no such figure, or a key that does not exist.
        ConfigError: a value of the wrong type, or a setting that is lacking.
    """
    from omegaconf import OmegaConf

    name = name.replace("-", "_")
    if name not in names():
        raise unknown("figure", name, names())
    path = Path(groups.conf_dir()) / "figure" / f"{name}.yaml"
    return parse(cast("dict[str, Any]", OmegaConf.to_container(yaml_files.load(path), resolve=True)), name)


def parse(content: Mapping[str, Any], name: str) -> FigureSpec:
    """A figure from the plain content of its YAML.

    Raises:
        UnknownName: a key, paper or scale that there is none of.
        ConfigError: no quick setting.
    """
    where = f"figure '{name}'"
    content = {"rows": ALONE, "columns": ALONE, **content, "name": name}
    lists = {"rows": RowSpec, "columns": ColumnSpec}
    made: dict[str, tuple[Any, ...]] = {
        key: tuple(typed(cls, each, f"{where}, {key}") for each in content[key]) for key, cls in lists.items()
    }
    settings = {}
    for scale, values in (content.get("settings") or {}).items():
        if scale not in SETTINGS:
            raise unknown(f"scale of {where}", scale, SETTINGS)
        settings[scale] = typed(Setting, values, f"{where}, {scale}")
    if QUICK not in settings:
        raise ConfigError(f"{where} needs settings.quick")
    rest = {key: value for key, value in content.items() if key not in (*lists, "settings")}
    spec = typed(FigureSpec, {**rest, "settings": {}}, where)
    if spec.paper not in PAPERS:
        raise unknown(f"paper of {where}", spec.paper, PAPERS)
    return FigureSpec(**{**{k: getattr(spec, k) for k in rest}, **made, "settings": settings})
