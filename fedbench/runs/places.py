"""Where a run's files are, and whether what is there may be used: it is of other samples, or of other code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import OmegaConf

from fedbench.config import groups, options
from fedbench.core.errors import FedbenchError, Stale
from fedbench.results.folder import RunFolder, Status
from fedbench.results.observer import Labels
from fedbench.results.run_files import CONFIG, RESULT, files_of
from fedbench.runs import fingerprint
from fedbench.runs.config import RunConfig, resolve, run_key

if TYPE_CHECKING:
    from omegaconf import DictConfig


def folder_of(run: RunConfig) -> RunFolder:
    """Where the run's files are."""
    try:
        data = fingerprint.content(run.dataset)
    except (
        FedbenchError
    ):  # raised again where samples are needed; what was found with them may still be shown
        data = ""
    return RunFolder(run.settings.runs_dir, run_key(run), labels_of(run), data)


def standing(run: RunConfig, folder: RunFolder, *, tell: bool = True) -> Status:
    """`folder.status()`, where a result or checkpoint of other code counts as `run.settings.stale` says.

    `tell`: warn of one that is shown.

    Raises:
        Stale: there is one, and stale=error.
    """
    status = folder.status()
    parts = fingerprint.changed(folder.code, fingerprint.code_of(run)) if status != "new" else []
    if not parts:
        return status
    if run.settings.stale == "rerun":
        return "new"
    what = "was made" if status == "finished" else "was begun"
    reason = f"{folder.path} {what} by other code ({', '.join(parts)} changed since)"
    if run.settings.stale == "error":
        raise Stale(f"{reason}; stale=rerun makes it again, stale=show keeps it")
    if tell:
        fingerprint.warn_once(f"{reason}; stale=rerun makes it again")
    return status


def changed_since(folder: Path) -> list[str]:
    """The parts of today's code that are not what made the finished run in `folder`, by its own config.

    None where that config is damaged or its data set or a class of its own is elsewhere.
    """
    files = files_of(folder)
    try:
        code = str(files.json(RESULT).get("code") or "")
        files.read(CONFIG)  # it is as it was written
        config = groups.load_yaml(folder / CONFIG)
    except FedbenchError:
        return []
    try:
        return fingerprint.changed(code, fingerprint.code_of(resolve(config)))
    except FedbenchError:
        return [part for part in ("method", "model", "partition") if _refuses(part, config)]


def _refuses(part: str, config: DictConfig) -> bool:
    """Whether a component that there is does not take the settings that it had."""
    components = groups.registry(part)
    values = config.get(part)
    if not values or values.get("name") not in components:
        return False
    try:
        components.build(cast("dict[str, Any]", OmegaConf.to_container(values, resolve=False)))
    except FedbenchError:
        return True
    return False


def labels_of(run: RunConfig) -> Labels:
    """What people call the run; of a protocol also what is not as its preset says."""
    names = {group: run.labels[group] for group in ("dataset", "partition", "method")}
    changed = options.changed("protocol", run.plain["protocol"])
    protocol = run.labels["protocol"] + (f" ({changed})" if changed else "")
    return Labels(**names, model=run.model.label, protocol=protocol, seed=run.seed)
