"""`python -m fedbench new KIND NAME`: the files of a new method, data set, partition, model or table.

They work as they are: a method passes `check-method`, the others run. TODO marks what to fill in.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from pathlib import Path

from fedbench.config import groups
from fedbench.config.arguments import asks_for_help
from fedbench.config.messages import OK, REFUSED
from fedbench.core.errors import ConfigError, unknown

USAGE = "usage: python -m fedbench new method|dataset|partition|model|table NAME   in a clone of fedbench"

TEMPLATES = Path(__file__).with_name("templates")
PARTS = {  # kind -> (package that its class goes to; "": it has none, how to try it)
    "method": ("fedbench.methods", "check-method NAME"),
    "dataset": ("fedbench.data.datasets", "method=fedavg dataset=NAME"),
    "partition": ("fedbench.data.partitions", "method=fedavg partition=NAME"),
    "model": ("fedbench.models", "method=fedavg model=NAME"),
    "table": ("", "reproduce table=NAME --dry-run"),
}
PAGES = {"method": "writing-a-method.md", "table": "tables.md"}
ENTRY = re.compile(r' {8}"(\w+)": "[\w.]+:\w+",\n')  # a line of a registry


def new_command(arguments: Sequence[str]) -> int:
    """Write the files of a new method, data set, partition, model or table to fill in; return the exit code."""
    if asks_for_help(arguments) or len(arguments) != 2:
        print(USAGE)
        return OK if asks_for_help(arguments) else REFUSED
    kind, name = arguments
    root = groups.conf_dir().parent
    if kind not in PARTS:
        raise unknown("kind", kind, PARTS)
    if not (root / "pyproject.toml").is_file():
        raise ConfigError("new needs a clone of fedbench, and this one is an installed package: run it in a clone")
    command = PARTS[kind][-1].replace("NAME", name)
    for path, text in _files(root, kind, name).items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(root))
    print(f"fill in the lines with TODO: docs/{PAGES.get(kind, 'datasets.md')}")
    print(f"try it: python -m fedbench {command}")
    return OK


def _files(root: Path, kind: str, name: str) -> dict[Path, str]:
    """Return the text of each file that a new component takes.

    Raises:
        ConfigError: the name is no module name, or is taken.
    """
    package, _ = PARTS[kind]
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"'{name}' cannot name a module: use small letters, digits and _, begin with a letter, and avoid Python's "
            "keywords"
        )
    folder = root.joinpath(*package.split("."))
    places = [root / "conf" / kind / f"{name}.yaml", *([folder / f"{name}.py"] if package else [])]
    if any(path.exists() for path in (*places, folder / name)) or (package and name in groups.registry(kind)):
        raise ConfigError(f"a {kind} or a module '{name}' exists already; choose another name")
    paper, _, number = name.rpartition("_")
    cls = "".join(word.capitalize() for word in name.split("_"))
    words = {"NAME": name, "CLASS": cls, "PAPER": paper or name, "NUMBER": number.upper() if paper else "T1"}
    filled = {}
    for path in places:
        text = (TEMPLATES / f"{kind}{path.suffix}.txt").read_text(encoding="utf-8")
        filled[path] = re.sub("|".join(words), lambda match: words[match[0]], text)
    if package:
        registry = folder / "__init__.py"
        text = registry.read_text(encoding="utf-8")
        entries = list(ENTRY.finditer(text))  # in alphabetical order
        at = next((each.start() for each in entries if each[1] > name), entries[-1].end())
        filled[registry] = f'{text[:at]}        "{name}": "{package}.{name}:{cls}",\n{text[at:]}'
    return filled
