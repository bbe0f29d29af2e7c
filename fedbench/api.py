"""fedbench in Python: `run`, `sweep`, `load` and `table`, with what the command line takes and the errors it gives.

Nothing is printed unless asked for (`progress="auto"`); warnings and the failures of a sweep are.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

    from fedbench.papers.render import FilledTable

QUIET = {"progress": "none"}
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")  # text that Hydra reads as it is


def run(*overrides: str, **values: Any) -> Run:
    """Return the finished run of a configuration: made, gone on with, or read if it is there.

    Args:
        overrides: as on the command line, `"method=fedcollab"`, `"method.mu=0.1"`.
        values: the same for keys that are Python names, `seed=0`, `save_models=True`.

    Raises:
        FedbenchError: whatever the command line would say in one line.
    """
    from fedbench.config.compose import compose, tell_of_doubles
    from fedbench.runs.config import resolve
    from fedbench.runs.execution import execute

    with _told(overrides):
        given = [*overrides, *_texts(values)]
        tell_of_doubles(given)
        return execute(resolve(compose([*_texts(QUIET), *given])))


def sweep(*overrides: str, **values: Any) -> pd.DataFrame:
    """Return one line a finished run of every combination, with its folder; a list or a tuple holds values to combine.

    `sweep("method=local,fedavg", seed=[0, 1])` is `python -m fedbench -m method=local,fedavg seed=0,1`; launchers
    (`"hydra/launcher=joblib"`), experiments and tuning are asked for in the same words. The failures of single runs
    are told on standard error; they are missing in what is returned.

    Raises:
        FedbenchError: no run has a result; the reason of the first.
    """
    from fedbench.cli.program import outcomes_of
    from fedbench.sweeps.session import swept, tidy

    arguments = ["-m", *overrides]
    for key, value in values.items():
        arguments.append(f"{key}={','.join(map(_text, value if isinstance(value, (list, tuple)) else [value]))}")
    with _told(overrides), contextlib.ExitStack() as quiet:
        if not any(text.startswith("progress=") for text in arguments):
            arguments += _texts(QUIET)
            quiet.enter_context(contextlib.redirect_stdout(io.StringIO()))
        outcomes = outcomes_of(arguments)
    finished = [outcome for outcome in outcomes if outcome.row is not None]
    if not finished:
        reason = next((outcome.failure for outcome in outcomes), "the sweep holds no run")
        raise FedbenchError(reason.removeprefix("error: "))
    return tidy(finished, swept(outcomes))


def load(*folders: Path | str, config: bool = True) -> pd.DataFrame:
    """Return all finished runs in or below `folders` (default: as `run`), one line each; see fedbench.runs.run.collect.

    `code_changed`: the parts of the code that are not what made it, "" where it was made by today's; so in `sweep`.

    Raises:
        FedbenchError: there is no such folder.
    """
    from fedbench.runs.execution import changed_since
    from fedbench.runs.run import collect

    found = collect(folders or (os.environ.get("FEDBENCH_RUNS", "runs"),), config=config)
    if not found.empty:
        found["code_changed"] = [", ".join(changed_since(Path(path))) for path in found["path"]]
    return found


def table(name: str, results: Path | str = "results") -> FilledTable:
    """Return a filled table by its folder's name below `results`/tables, as `fedcollab_t1` or `fedcollab_t1-quick`.

    Raises:
        FedbenchError: it was not filled; says how.
    """
    from fedbench.papers.render import FilledTable

    return FilledTable.named(name, results)


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
    raise ConfigError(f"{value!r} is no value of a key: give a number, a text, true or false, None or a list")


@contextlib.contextmanager
def _told(overrides: tuple[str, ...]) -> Iterator[None]:
    """Raise what the command line would say in one line as such, and leave the caller's torch as it was."""
    import torch

    from fedbench.config import messages

    if other := [each for each in overrides if not isinstance(each, str)]:
        raise ConfigError(f"{other[0]!r} is no override: give a text, 'seed=0', or a dictionary as run(**values)")
    threads, precise = torch.get_num_threads(), {}
    parts: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    for part in parts:
        with contextlib.suppress(RuntimeError):  # what was set by torch's newer names is not told by this one
            precise[part] = part.allow_tf32
    try:
        yield
    except FedbenchError:
        raise
    except Exception as error:
        line = messages.one_line(error)
        if line is None:
            raise
        raise FedbenchError(line) from error
    finally:
        torch.set_num_threads(threads)
        for part, allowed in precise.items():
            part.allow_tf32 = allowed
