"""`python -m fedbench list KIND`: the methods, their parameters, data sets, partitions, ... to choose from."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rich.table import Table
from rich.text import Text

from fedbench.config import groups
from fedbench.config.arguments import CommandParser
from fedbench.config.fields import DOMAIN, OWN, Component, typed
from fedbench.config.groups import SCHEMAS
from fedbench.core.errors import unknown
from fedbench.core.tables import markdown
from fedbench.runs.progress import Output
from fedbench.runs.run import flat
from fedbench.sample_metrics import METRICS

if TYPE_CHECKING:
    from fedbench.engine.method import Method

Row = dict[str, str]
WHATEVER = "the protocol scores every method so"


@dataclass(frozen=True)
class Listing:
    """A table of what can be chosen: at least one row, and all have the same columns in the same order."""

    title: str
    rows: list[Row]
    local: tuple[str, ...] = ()  # columns that depend on this machine

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.rows[0])

    def markdown(self) -> str:
        """Return the table as Markdown, the same on every machine."""
        columns = [column for column in self.columns if column not in self.local]
        return markdown([columns, *([row[column] for column in columns] for row in self.rows)])


def listing(kind: str) -> Listing:
    """Return the table called `kind`. Raises UnknownName if there is none."""
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    found = KINDS[kind]
    return cast("Listing", (pkgutil.resolve_name(found) if isinstance(found, str) else found)())


def usable(group: str) -> list[str]:
    """Return the names of a group; names of other packages that cannot be loaded are left out and told on stderr."""
    troubles = groups.troubles(group) if group in groups.REGISTRIES else {}
    for text in troubles.values():
        print(f"left out: {text}", file=sys.stderr)
    return [name for name in groups.names(group) if name not in troubles]


@dataclass(frozen=True)
class Kind:
    """A group of methods: what a client has of its own, for which clients, and the methods."""

    name: str
    own: str
    made_for: str
    methods: str = ""  # by name, those below them too; the others are told by `Method.family`
    family: str = ""


GROUPS = (
    Kind(
        "one global model",
        "nothing: all clients share one model",
        "similar clients, clients that join later, or clients that differ in labels and must share one model",
        family="global",
    ),
    Kind(
        "server steps",
        "nothing: all clients share one model, which an optimiser on the server updates",
        "the same clients, if averages converge slowly or oscillate",
        "fedavgm fedadagrad fedadam",
    ),
    Kind(
        "robust servers",
        "nothing: all clients share one model, averaged so that a few uploads cannot move it far",
        "some clients that are faulty, or attack",
        "robust",
    ),
    Kind(
        "private servers",
        "nothing: all clients share one model, which reveals little about the data of any one client",
        "many clients, whose data the model must not reveal",
        "dp_fedavg",
    ),
    Kind(
        "adaptation",
        "the global model, fitted to the client's samples when it is used",
        "clients that join later, or that can keep nothing between rounds",
        "fedbabu finetune knnper perfedavg",
    ),
    Kind(
        "heads, and other parts",
        "a part of the model: its head, normalisation, lower layers, or chosen entries",
        "other labels (label skew) or other inputs, with features that all can share",
        "fedala fedbn fedcp feddbe feddecomp fedgh fedlora fedper fedrep fedrod fedselect gpfl lg_fedavg pfedfda",
    ),
    Kind(
        "whole models",
        "a model, beside a global one or trained with what others send",
        "clients with enough samples for a model",
        "apfl ditto feddistill fedkd fedmrl fedphp fedproto fml local pfedhn pfedme sosicfl_plus",
    ),
    Kind(
        "mixtures",
        "weights with which the client mixes several models",
        "clients whose data mix a few distributions, or that can measure who helps them",
        "apple cwfedavg fedem fedfomo",
    ),
    Kind(
        "graphs",
        "a model, or a part, that the server mixes from similar clients (a matrix W)",
        "clients that are similar to some others without forming groups",
        "fedamp fedap fedcac fedccfa fedpac fedrema pfedsim",
        "mixture",
    ),
    Kind(
        "clusters",
        "one model for each group of clients (`oracle`: the true groups; `per_kind`: "
        "[the modalities](#clients-of-several-modalities))",
        "clients in a few groups that differ",
        "fedrc per_kind",
        "clustered",
    ),
    Kind("other personal models", "see the method", "see the method", family="personalised"),
)


def kind_of(method: Method) -> Kind:
    """Return the group of a method: of the nearest of its bases that a group names, else of its family."""
    classes, lost = groups.registry("method"), groups.troubles("method")
    named = {classes.get(name): kind for kind in GROUPS for name in kind.methods.split() if name not in lost}
    found = next((named[base] for base in type(method).__mro__ if base in named), None)
    return found or next(kind for kind in GROUPS if kind.family == method.family)


def methods() -> Listing:
    """List the methods by what a client has of its own, with what each keeps and sends; presets beside their method."""
    found: dict[str, tuple[Method, list[str]]] = {}
    for name in usable("method"):
        config = groups.plain_option("method", name)
        found.setdefault(str(config["name"]), (groups.registry("method").build(config), []))[1].append(name)
    rows = [
        {
            "group": kind_of(method).name,
            "method": ", ".join(ordered := sorted(names, key=lambda each: (each != name, each))),
            "what it does": groups.about("method", ordered[0]).partition(": ")[2] or "-",
            "paper": _paper(type(method)),
            "kept by clients": _leaves(type(method), "Memory"),
            "server → client": _leaves(type(method), "Message"),
            "client → server": _leaves(type(method), "Upload"),
        }
        for name, (method, names) in found.items()
    ]
    order = [kind.name for kind in GROUPS]
    rows.sort(key=lambda row: order.index(row["group"]))
    title = "Methods, and the leaves that are kept or sent (* is the model; N clients, K classes, d features)"
    return Listing(title, rows)


def _groups() -> Listing:
    """List the groups of methods, for a reader who asks which to try."""
    found = methods().rows
    rows = [
        {
            "group": kind.name,
            "a client's own": kind.own,
            "made for": kind.made_for,
            "methods": ", ".join(row["method"].partition(",")[0] for row in found if row["group"] == kind.name),
        }
        for kind in GROUPS
    ]
    return Listing("Groups of methods", [row for row in rows if row["methods"]])


def _paper(method: type[Method]) -> str:
    """Return a method's paper; that of a base of fedbench is not the paper of another package's class."""
    return method.paper if "paper" in vars(method) or method.__module__.startswith(f"{OWN}.") else "-"


def _leaves(method: type, what: str) -> str:
    """Return what the docstring of a method, or of the nearest base that says so, has at `Message:`, `Upload:`, ...."""
    texts = (re.search(rf"^ *{what}: (.*(?:\n {{8}}.*)*)", base.__doc__ or "", re.MULTILINE) for base in method.__mro__)
    return next((re.sub(r"\s+", " ", found[1]) for found in texts if found), "-")


@functools.cache
def varied() -> frozenset[tuple[str, str]]:
    """Return (method, key) of the parameters that a preset, table, figure, board or experiment sets, or a board tunes.

    A key that a file sets counts for every method that the file names.
    """
    found = set[tuple[str, str]]()
    for group in ("table", "figure", "leaderboard", "experiment"):
        for name in groups.names(group):
            text = groups.file_of(group, name).read_text(encoding="utf-8")
            chosen = re.findall(r"\bmethod(?:/base)?=(\w+)", text)
            named = {str(groups.plain_option("method", each)["name"]) for each in chosen}
            found |= set(itertools.product(named, re.findall(r"\bmethod\.(?:base\.)?([\w.]+)=", text)))
    for name in {*groups.names("method")}.difference(groups.troubles("method")):
        config = groups.plain_option("method", name)
        usual = str(config["name"])
        changes = groups.different(config, groups.plain_option("method", usual)) if usual != name else {}
        found |= {(usual, key) for key in (*flat(changes), *(groups.tune(name) or {}))}
    return frozenset(found)


def presets() -> Listing:
    """List each YAML's values, of a variant its differences from the method's own; each part has a row."""
    rows = []
    for name in usable("method"):
        config = groups.plain_option("method", name)
        usual = str(config["name"])
        variant = name != usual and usual in groups.names("method")
        parts = {key: value for key, value in config.items() if isinstance(value, Mapping) and "name" not in value}
        whole = {key: value for key, value in config.items() if key not in parts}
        changes = groups.different(config, groups.plain_option("method", usual)) if variant else {}
        shown = (groups.parameters(changes, hidden=()) if variant else groups.parameters(whole)) or "-"
        found = domains(groups.registry("method").get(usual)).items()
        said = [f"{key} {domain}" for key, domain in found if key in flat(config)]
        own = ", ".join(text for text in said if text.partition(".")[0] not in parts)
        text = f"as {usual}, but {shown}" if variant else shown
        rows.append({"method": name, "parameters": text, "domains": "" if variant else own})
        for key, part in ({} if variant else parts).items():
            theirs = ", ".join(each.removeprefix(f"{key}.") for each in said if each.startswith(f"{key}."))
            rows.append({"method": f"{name}, {key}.*", "parameters": groups.parameters(part), "domains": theirs})
    title = "Parameters of methods, each a key (method.mu=1); conf/method/ explains them"
    return Listing(title, rows)


def scored() -> Listing:
    """List which of a client's models counts, for every protocol and method."""
    from fedbench.engine.method import own_score

    built = {name: groups.registry("method").build(groups.plain_option("method", name)) for name in usable("method")}
    protocols: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name in groups.names("protocol"):
        chosen = typed(SCHEMAS["protocol"], groups.plain_option("protocol", name), "protocol")
        each = [own_score(m, chosen) if chosen.score == "own" else (chosen.score, WHATEVER) for m in built.values()]
        protocols.setdefault(tuple(each), []).append(name)
    rows = []
    for found, names in protocols.items():
        for model, why in sorted(set(found)):
            chosen = [name for name, each in zip(built, found, strict=True) if each == (model, why)]
            methods = ", ".join(chosen) if len(chosen) < len(built) else "all"
            rows.append({"protocols": ", ".join(names), "methods": methods, "scored": model, "why": why})
    return Listing("Which of a client's models counts", rows)


def components(group: str, title: str) -> Listing:
    """List a group by its YAMLs alone."""
    rows = []
    for name in usable(group):
        config, file = groups.plain_option(group, name), groups.file_of(group, name)
        row, source = {group: name, "content": groups.about(group, name)}, file.relative_to(file.parents[2]).as_posix()
        if group in SCHEMAS:  # only what differs from the schema; the domains of all rows would be the same
            row["parameters"] = groups.parameters(groups.different(config, dataclasses.asdict(SCHEMAS[group]())))
        else:
            row |= {"parameters": groups.parameters(config), "domains": "-"}
            if config["name"] in (registry := groups.registry(group)):  # else it stands for another's (model=auto)
                cls = registry.get(config["name"])
                said = ", ".join(f"{key} {domain}" for key, domain in domains(cls).items())
                row["domains"], source = said or "-", f"{cls.__module__.replace('.', '/')}.py"
        row["source"] = source
        rows.append(row)
    return Listing(title, rows)


def domains(cls: type, prefix: str = "") -> dict[str, str]:
    """Return the domains of the class's parameters by key, including those of a nested schema."""
    found: dict[str, str] = {}
    for each in dataclasses.fields(cls):
        domain, inner = each.metadata.get(DOMAIN), cast("Any", each.default_factory)
        if isinstance(inner, type) and issubclass(inner, Component):
            found |= domains(inner, f"{prefix}{each.name}.")
        elif domain is not None and domain.short:
            null = " or null" if "None" in str(each.type) else ""
            found[f"{prefix}{each.name}"] = f"{domain.short}{null}"
    return found


def _datasets() -> Listing:
    rows = []
    for name in usable("dataset"):
        source = groups.registry("dataset").build(groups.plain_option("dataset", name))
        state = source.state()
        ready = "ready" if state.prepared else "ready, read at first use"
        rows.append(
            {
                "data set": name,
                "state": ready if state.ready else "missing",
                "where": state.where or "-",
                "content": groups.about("dataset", name),
                "how to get it": state.how,
            }
        )
    return Listing("Data sets", rows, local=("state", "where"))


def _recorders() -> Listing:
    from fedbench.recorders import RECORDERS

    rows = [
        {
            "recorder": name,
            "keeps": (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " "),
            "by default": "after every round" if cls.always else "after the last round",
        }
        for name, cls in ((name, RECORDERS.get(name)) for name in RECORDERS)
    ]
    return Listing("What a run can record besides its scores", rows)


def _metrics() -> Listing:
    words = {name: (inspect.getdoc(each.of) or "").partition("\n")[0] for name, each in METRICS.items()}
    rows = [{"metric": name, "meaning": meaning} for name, meaning in words.items()]
    return Listing("Metrics of a run besides accuracy: protocol.metrics=[auroc,nll]", rows)


COLUMNS = {  # of a run's row; SET, RULE, METRIC and MODALITY stand for names
    "dataset partition model method protocol seed": "the choices of the run",
    "variant": "the purpose of a run that was not asked for, such as the Local of IPR and RSD",
    "key data partition_hash code": "hashes of the settings, the samples, the split, and each part of the code",
    "scored precision": "which of a client's models counts; hardware.precision",
    "task": "regression if a number is predicted; acc and score are then the explained variance, percent",
    "clients of_clients": "number of clients with an accuracy, and of all clients",
    "clients_on_SET clients_ipr": "number of clients with an accuracy on a test set, and with a gain over Local",
    "rounds report average report_first report_last": "length of the run; report rule, its average, its rounds",
    "test_set": "the test set of acc: local, global or common",
    "acc acc_pooled score": "mean over clients, percent; over all test samples; the protocol's choice of the two",
    "ipr rsd local_key": "share of clients better than Local, percent; spread of their gain, points; key of that Local",
    "acc_on_SET acc_on_SET_pooled": "acc and acc_pooled on each scored set; val is the validation set",
    "acc_RULE acc_RULE_pooled": "acc and acc_pooled by each report rule: last, best_test, best_val, mean_last_5",
    "acc_of_MODALITY": "mean over the clients of one modality",
    "unseen acc_unseen_received acc_unseen_EPOCHS unseen_note": "unseen clients: number, accuracy, why there is none",
    "METRIC METRIC_pooled METRIC_on_SET METRIC_unseen_EPOCHS": "each of protocol.metrics, as acc",
    "clients_METRIC ipr_METRIC rsd_METRIC": "number of clients with a value; IPR and RSD of the metric",
    "epsilon": "privacy loss of methods with differential privacy, at their delta; null: infinite, as without noise",
    "bytes_up bytes_down": "uploads, and messages to clients that train, over all rounds; scoring alone counts none",
    "bytes_up_prepare bytes_down_prepare": "the part of these that the method's preparation sends",
    "seconds_total": "wall clock; seconds_prepare, _train, _server and _evaluate are its parts",
    "version_PROGRAM commit": "versions of fedbench, Python, torch and NumPy, and the commit",
}


def _columns() -> Listing:
    rows = [{"columns": names.replace(" ", ", "), "meaning": words} for names, words in COLUMNS.items()]
    return Listing("Columns of result.json, of collect and of data frames", rows)


KINDS: dict[str, Callable[[], Listing] | str] = {  # of papers by name, which only a listing of them imports
    "methods": methods,
    "groups": _groups,
    "presets": presets,
    "scored": scored,
    "datasets": _datasets,
    "partitions": partial(
        components, "partition", "Partitions; a number behind a family's name is its parameter: dir0.1"
    ),
    "models": partial(components, "model", "Models"),
    "protocols": partial(components, "protocol", "Protocols; parameters that differ from the schema's defaults"),
    "tables": "fedbench.papers.spec:listed_tables",
    "figures": "fedbench.papers.figure_plan:listed_figures",
    "recorders": _recorders,
    "metrics": _metrics,
    "columns": _columns,
}


def list_command(arguments: Sequence[str]) -> int:
    """List what can be chosen, such as methods, datasets and partitions; return the exit code."""
    parser = CommandParser("list", description="Show what can be chosen.")
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--markdown", action="store_true", help="as Markdown, without what depends on this machine")
    given = parser.parse_args(arguments)
    table = listing(given.kind)
    if given.markdown:
        sys.stdout.write(table.markdown())
        return 0
    shown = Table(title=table.title, title_justify="left")
    for column in table.columns:
        words = (word for row in table.rows for word in row[column].split())
        whole = max(map(len, words)) if column in groups.REGISTRIES or column in SCHEMAS else None  # a name is
        shown.add_column(column, overflow="fold", min_width=whole)
    for row in table.rows:
        shown.add_row(*(Text(row[column]) for column in table.columns))
    Output(width=200).print(shown)
    return 0
