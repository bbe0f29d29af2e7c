"""What `import fedbench` gives: `run`, `sweep`, `load`, `table`, with the overrides and errors of the command line.

Only warnings and the failures of a sweep are printed; `progress="auto"` shows progress.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.config import messages
from fedbench.config.compose import compose, tell_of_doubles
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.locks import wait_while_in_use
from fedbench.runs.config import resolve
from fedbench.runs.run import Run, collect

if TYPE_CHECKING:
    import pandas as pd

    from fedbench.papers.render import FilledTable

QUIET = {"progress": "none"}
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")  # text that Hydra reads as it is


def run(*overrides: str, data: Any = None, **values: Any) -> Run:
    """Return a `Run`: made, resumed, or read if it is finished.

    If another thread or process makes the same run, wait for it.

    Args:
        overrides: as on the command line, `"method=fedcollab"`, `"method.mu=0.1"`.
        data: samples in memory instead of a data set, such as `(x, y, client)`: see fedbench.data.memory.
        values: the same for keys that are Python names, `seed=0`, `save_models=True`.

    Raises:
        FedbenchError: any error that the command line reports in one line.
    """
    from fedbench.runs.execution import execute

    with _told(overrides):
        given = [*_data(data, [*overrides, *values]), *overrides, *_texts(values)]
        tell_of_doubles(given)
        chosen = resolve(compose([*_texts(QUIET), *given]))
        if name := chosen.settings.sweep.name:  # of an experiment too, whose values one run would not have
            raise ConfigError(f"sweep.name={name} needs a sweep; call fedbench.sweep")
        return wait_while_in_use(lambda: execute(chosen))


def sweep(*overrides: str, data: Any = None, **values: Any) -> pd.DataFrame:
    """Return a data frame with one row for each finished run; a list, tuple, range or array holds values to combine.

    `sweep("method=local,fedavg", seed=[0, 1])` is `python -m fedbench -m method=local,fedavg seed=0,1`; launchers
    (`"hydra/launcher=joblib"`), experiments and tuning are asked for in the same words. The failures of single runs
    are told on standard error; they are missing in what is returned. A column for each swept key. `data`: as in `run`.

    Raises:
        FedbenchError: no run has a result; the reason of the first.
    """
    import pandas as pd

    from fedbench.cli.program import outcomes_of
    from fedbench.sweeps.jobs import hushed
    from fedbench.sweeps.session import swept, tidy

    arguments = ["-m", *overrides]
    for key, value in values.items():
        several = isinstance(value, (list, tuple, range)) or getattr(value, "ndim", 0) == 1  # of NumPy, pandas
        if not (each := [*value] if several else [value]):
            raise ConfigError(f"{key}: there is no value to combine; give one at least, or leave {key} out")
        arguments.append(f"{key}={','.join(map(_text, each))}")
    with _told(overrides), contextlib.ExitStack() as quiet:
        arguments[1:1] = _data(data, arguments)
        if not any(text.startswith("progress=") for text in arguments):
            arguments += _texts(QUIET)
            quiet.enter_context(hushed())
        outcomes = outcomes_of(arguments)
    finished = [outcome for outcome in outcomes if outcome.row is not None]
    if not finished:
        raise FedbenchError(next((each.failure for each in outcomes), "the sweep holds no run").removeprefix("error: "))
    runs: pd.DataFrame = tidy(finished, keys := swept(outcomes, ("partition_seed",)))
    numbers = runs[keys].apply(pd.to_numeric, errors="coerce").dropna(axis="columns")
    runs[list(numbers)] = numbers
    return runs


def load(*folders: Path | str, config: bool = True) -> pd.DataFrame:
    """Return a data frame of every finished run in or below `folders` (default: where `run` puts them).

    The column `code_changed` names the parts of the code that have changed since the run, as in `sweep`; "" if none.

    Raises:
        FedbenchError: there is no such folder.
    """
    from fedbench.runs.execution import changed_since

    if odd := [each for each in folders if not isinstance(each, (str, Path))]:
        raise ConfigError(f"{odd[0]!r} is no folder: give each by itself, load('runs', 'others')")
    found = collect(folders or (os.environ.get("FEDBENCH_RUNS", "runs"),), config=config)
    if not found.empty:
        found["code_changed"] = [", ".join(changed_since(Path(path))) for path in found["path"]]
    return found


def table(name: str, results: Path | str = "results") -> FilledTable:
    """Return a filled table of a paper by name, such as `fedcollab_t1`: `cells`, `rows`, `curves`, `matrices`.

    Raises:
        FedbenchError: it was not filled; says how.
    """
    from fedbench.papers.render import FilledTable

    return FilledTable.named(name, results)


def _data(data: Any, others: Sequence[str] = ()) -> list[str]:
    """Return the overrides by which runs read `data`; empty without data.

    Raises:
        ConfigError: `others`, overrides or their keys, name a data set as well.
    """
    if data is None:
        return []
    if both := {each.partition("=")[0].lstrip("+") for each in others} & {"dataset", "dataset.path"}:
        raise ConfigError(f"{min(both)} names a data set beside data=...; give one of them")
    from fedbench.data.memory import overrides_of

    return _texts(overrides_of(data))


def _texts(values: dict[str, Any]) -> list[str]:
    return [f"{key}={_text(value)}" for key, value in values.items()]


def _text(value: Any) -> str:
    """Return a value as Hydra's grammar writes it.

    Raises:
        ConfigError: it has no form there.
    """
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, (str, Path)):
        text = str(value)
        quotable = re.sub(r"\\+(?='|\Z)", r"\g<0>\g<0>", text)  # elsewhere a backslash is one for Hydra too
        return text if PLAIN.fullmatch(text) else "'" + quotable.replace("'", "\\'") + "'"
    raise ConfigError(f"{value!r} cannot be a value of a key: give a number, a text, true or false, None or a list")


@contextlib.contextmanager
def _told(overrides: tuple[str, ...]) -> Iterator[None]:
    """Raise errors that the command line reports in one line as FedbenchError; leave the caller's torch alone."""
    if other := [each for each in overrides if not isinstance(each, str)]:
        raise ConfigError(f"{other[0]!r} is not an override: give a text, 'seed=0', or a dictionary as run(**values)")
    if options := [each for each in overrides if each.startswith("-") and not each.startswith(("-m", "--config-dir"))]:
        raise ConfigError(f"{options[0]} is an option of the command line; in Python give overrides, such as 'seed=0'")
    try:
        from fedbench.runs.building import own_torch

        with own_torch():
            yield
    except FedbenchError:
        raise
    except Exception as error:
        line = messages.one_line(error)
        if line is None:
            raise
        raise FedbenchError(line) from error
