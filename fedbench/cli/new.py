"""`python -m fedbench new KIND NAME`: the files of a method, data set, partition, model or table of one's own.

They work as they are: a method passes `check-method`, the others run. TODO marks what to fill in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedbench.cli.program import asks_for_help
from fedbench.config import groups
from fedbench.config.messages import OK, REFUSED
from fedbench.core.errors import ConfigError, unknown

USAGE = "usage: python -m fedbench new method|dataset|partition|model|table NAME   in a clone of fedbench"

METHOD = '''\
"""CLASS: TODO authors, title, venue and year.

TODO what client k minimises and what the server does, with the paper's numbers of equations.
Deviations: TODO where this does not follow the paper, or the paper's text and code differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.config.fields import at_least
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class CLASS(FedAvg):
    """TODO what it is in a sentence: here, FedAvg with an L2 penalty."""

    strength: float = at_least(0, 0.01)  # TODO its own parameters, and what each means

    paper: ClassVar[str] = "TODO authors, venue, year"

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """F_k(w) + strength / 2 ||w||^2."""  # TODO the objective, and the hooks of docs/writing-a-method.md
        weights = client.task.weights(work)
        return super().loss(work, client, batch) + self.strength / 2 * trees.dot(weights, weights)
'''
METHOD_YAML = """\
# CLASS (TODO authors, venue year): TODO what it does, in a sentence.
name: NAME
private: []  # leaves that stay on their clients
strength: 0.01  # TODO as in the class
"""
DATASET = '''\
"""TODO what data these are, whose, and under which licence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.fields import finite, positive
from fedbench.core.errors import Report, silent
from fedbench.data.dataset import Availability, Dataset, DataSource


@dataclass(frozen=True)
class CLASS(DataSource):
    """TODO what a sample is: here, noise around a mean for each class."""

    name: ClassVar[str] = "NAME"

    mean: tuple[float, ...] = finite((1.0,))  # TODO a channel
    std: tuple[float, ...] = positive((1.0,))

    def state(self) -> Availability:
        """TODO whether the data are here, where, and how to get them."""
        return Availability(True, "drawn", (), "nothing to fetch")

    def read(self, report: Report = silent) -> Dataset:
        """TODO read them: x uint8 or float32 [n, C, H, W], y int64 [n], training samples first."""
        y = np.arange(1000, dtype=np.int64) % 10
        noise = np.random.default_rng(0).normal(size=(1000, 1, 8, 8))
        x = (noise + y[:, None, None, None] / 5).astype(np.float32)
        return Dataset(self.name, x, y, 800, 10, self.mean, self.std, scale=1.0)
'''
DATASET_YAML = """\
# TODO how many samples of what, in one sentence.
name: NAME
model: mlp  # the model that model=auto takes
limit: null  # keep at most so many training samples, and the same share of the test samples
mean: [1.0]  # TODO a channel
std: [1.0]
"""
PARTITION = '''\
"""TODO how samples are dealt to clients, and the paper that does so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.fields import at_least
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, require_clients


@dataclass(frozen=True)
class CLASS(PartitionSpec):
    """TODO in a sentence: here, shuffle, then cut into equal parts."""

    name: ClassVar[str] = "NAME"

    num_clients: int = at_least(1, 10)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """TODO the numbers of each client's samples; all randomness comes from `rng`."""
        require_clients(self.num_clients, len(pool))
        return Assignment(clients=np.array_split(rng.permutation(pool.index), self.num_clients))
'''
PARTITION_YAML = """\
# TODO what each client holds, in a sentence.
name: NAME
num_clients: 10
"""
MODEL = '''\
"""TODO which network, and whose."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from fedbench.config.fields import at_least
from fedbench.models.task import Model


@dataclass(frozen=True)
class CLASS(Model):
    """TODO in a sentence: here, one hidden layer."""

    width: int = at_least(1, 64)  # TODO its own options

    @property
    def label(self) -> str:
        """As "NAME64"."""
        return f"NAME{self.width}"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: flatten, body, head."""  # TODO named stages; the last is called head
        body = nn.Sequential(nn.Linear(math.prod(shape), self.width), nn.ReLU())
        stages = {"flatten": nn.Flatten(), "body": body, "head": nn.Linear(self.width, classes)}
        return nn.Sequential(OrderedDict(stages))
'''
MODEL_YAML = """\
# TODO layers and sizes, in a sentence.
name: NAME
width: 64  # TODO as in the class
classifier: own  # what methods of body and classifier split off: own (their paper's) | last layer | linear layers
"""
TABLE_YAML = """\
name: NAME
title: "TODO paper (authors, year), Table 1: what it shows"
paper: PAPER
table: NUMBER
seeds: 3  # TODO of ours
published_seeds: 1  # TODO seeds behind a published mean, as far as the paper says
headline: Ditto  # TODO the row that the paper claims to be best
base: [protocol=quick, model=mlp]  # TODO what all cells share; a protocol of its own: conf/protocol/
notes:
  - "TODO what the paper leaves open, and what was taken."
metrics:
  - {name: acc, label: Acc %}
columns:
  - label: digits dir0.1  # TODO
    overrides: [dataset=digits, partition=dir0.1]
    published: {dataset: digits, partition: dir0.1}  # as in fedbench/tables/published.csv
rows:
  - {label: Local, overrides: [method=local]}  # TODO
  - {label: FedAvg, overrides: [method=fedavg]}
  - {label: Ditto, overrides: [method=ditto]}
"""
PARTS = {  # kind -> (package that holds its class, the module, the YAML, how to try it)
    "method": ("fedbench.methods", METHOD, METHOD_YAML, "check-method NAME"),
    "dataset": ("fedbench.data.datasets", DATASET, DATASET_YAML, "method=fedavg dataset=NAME"),
    "partition": ("fedbench.data.partitions", PARTITION, PARTITION_YAML, "method=fedavg partition=NAME"),
    "model": ("fedbench.models", MODEL, MODEL_YAML, "method=fedavg model=NAME"),
    "table": ("", "", TABLE_YAML, "reproduce table=NAME --dry-run"),
}
PAGES = {"method": "writing-a-method.md", "table": "writing-a-table.md"}
ENTRY = re.compile(r' {8}"(\w+)": "[\w.]+:\w+",\n')  # a line of a registry


def new_command(arguments: Sequence[str]) -> int:
    """Write the files of a new component; return the exit code."""
    if asks_for_help(arguments) or len(arguments) != 2:
        print(USAGE)
        return OK if asks_for_help(arguments) else REFUSED
    kind, name = arguments
    root = groups.conf_dir().parent
    if kind not in PARTS:
        raise unknown("kind", kind, PARTS)
    if not (root / "pyproject.toml").is_file():
        raise ConfigError("new writes into a clone of fedbench, this one is installed: run it in the clone")
    command = PARTS[kind][-1].replace("NAME", name)
    for path, text in _files(root, kind, name).items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(root))
    print(f"fill in what says TODO: docs/{PAGES.get(kind, 'writing-a-data-set-model-partition.md')}")
    print(f"try it: python -m fedbench {command}")
    return OK


def _files(root: Path, kind: str, name: str) -> dict[Path, str]:
    """Return the text of each file that a new component takes.

    Raises:
        ConfigError: the name is none for a module, or is taken.
    """
    package, module, yaml, _ = PARTS[kind]
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ConfigError(f"'{name}' is no name of a module: small letters, digits and _, a letter first")
    folder = root.joinpath(*package.split("."))
    made = {root / "conf" / kind / f"{name}.yaml": yaml, **({folder / f"{name}.py": module} if module else {})}
    if any(path.exists() for path in made) or (module and name in groups.registry(kind)):
        raise ConfigError(f"there is a {kind} or a module '{name}' already; choose another name")
    paper, _, number = name.rpartition("_")
    cls = "".join(word.capitalize() for word in name.split("_"))
    words = {"NAME": name, "CLASS": cls, "PAPER": paper or name, "NUMBER": number.upper() if paper else "T1"}
    filled = {path: re.sub("|".join(words), lambda match: words[match[0]], text) for path, text in made.items()}
    if module:
        registry = folder / "__init__.py"
        filled[registry] = _registered(registry.read_text(encoding="utf-8"), name, f"{package}.{name}:{cls}")
    return filled


def _registered(text: str, name: str, place: str) -> str:
    """Return a registry's module with one entry more, before the first whose name comes later."""
    entries = list(ENTRY.finditer(text))
    at = next((each.start() for each in entries if each[1] > name), entries[-1].end())
    return f'{text[:at]}        "{name}": "{place}",\n{text[at:]}'
