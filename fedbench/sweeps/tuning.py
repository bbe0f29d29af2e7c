"""Tuning with Optuna: propose values, launch the runs, and judge them only by validation accuracy."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from rich.table import Table

from fedbench.config.fields import Component, at_least, one_of, typed
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.files import write_text
from fedbench.plots import runs as plots
from fedbench.plots import style
from fedbench.runs.progress import Output, decimals
from fedbench.sweeps import jobs, session
from fedbench.sweeps.jobs import JobOutcome, say
from fedbench.sweeps.session import SEEDS


def split(overrides: Sequence[Override], distributions: Any) -> tuple[list[str], list[list[str]], dict[str, Any]]:
    """Return (overrides of every run, the combinations of swept seeds, key -> Optuna's distribution).

    Raises:
        ConfigError: Optuna does not accept the bounds.
    """
    fixed, seeds, space = {}, [], {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            fixed[key] = f"{key}={override.get_value_element_as_str()}"
        elif key.lstrip("+") in SEEDS:  # repeats of every trial, not choices
            seeds.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            try:
                space[key] = distribution(override, distributions)
            except ValueError as error:
                raise ConfigError(f"{key}: {error}") from error
    return list(fixed.values()), [list(each) for each in itertools.product(*seeds)], space


def distribution(override: Override, distributions: Any) -> Any:
    """Return Optuna's distribution for interval(a,b), tag(log,interval(a,b)), range(a,b,step), or a choice."""
    value = override.value()
    if isinstance(value, IntervalSweep):
        bounds: list[Any] = [value.start, value.end]
        whole = all(isinstance(bound, int) for bound in bounds)
        kind = distributions.IntDistribution if whole else distributions.FloatDistribution
        return kind(value.start, value.end, log="log" in value.tags)
    if isinstance(value, RangeSweep):
        values: list[float] = list(value.range())
        whole = all(isinstance(each, int) for each in values)
        if values and whole and value.step > 0:
            return distributions.IntDistribution(values[0], values[-1], step=int(value.step))
        return distributions.CategoricalDistribution(values)
    return distributions.CategoricalDistribution(list(override.sweep_string_iterator()))


@dataclass(frozen=True)
class Tuning(Component):
    """Fields of conf/hydra/sweeper/optuna.yaml."""

    section: ClassVar[str] = "hydra.sweeper"

    trials: int = at_least(1, 20)
    at_once: int = at_least(1, 1)
    sampler: str = one_of("tpe", "random")
    seed: int = at_least(0, 0)


@dataclass
class Trial:
    """One combination of values, and the outcomes of its runs (one for each seed)."""

    number: int
    values: dict[str, Any]
    outcomes: list[JobOutcome] = dataclasses.field(default_factory=list)

    def mean(self, column: str) -> float:
        """Return mean of a column of the rows over the seeds; nan if a run failed or lacks it."""
        found = [(outcome.row or {}).get(column) for outcome in self.outcomes]
        if any(value is None for value in found):
            return float("nan")
        return sum(map(float, found)) / len(found)  # type: ignore[arg-type]

    def overrides(self, params: Sequence[str]) -> str:
        """Return its values of `params` as on a command line."""
        return " ".join(f"{key.lstrip('+')}={self.values[key]}" for key in params)

    @property
    def score(self) -> float:
        """Validation accuracy in percent, averaged as the protocol averages its accuracy."""
        pooled = any((outcome.row or {}).get("average") == "pooled" for outcome in self.outcomes)
        return self.mean("acc_on_val_pooled" if pooled else "acc_on_val")


def tune(sweeper: Any, overrides: Sequence[Override], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run all trials and print the best; the swept `overrides` span the space.

    Raises:
        ConfigError: Optuna is missing, there are no validation samples, or nothing to tune.
        FedbenchError: no trial finished.
    """
    if jobs.is_only_planned():
        raise ConfigError(
            "--dry-run: the trials of a tuning depend on each other, so they cannot be listed; leave out hydra/sweeper"
        )
    tuning = typed(Tuning, settings, "hydra.sweeper")
    try:
        import optuna
    except ImportError as error:
        raise ConfigError("hydra/sweeper=optuna needs Optuna: pip install 'fedbench-harness[optuna]'") from error
    if sweeper.config.protocol.test.val_fraction == 0:  # what is no share of samples, each run refuses
        raise ConfigError("tuning needs validation samples, never the test set: add protocol.test.val_fraction=0.2")
    fixed, repeats, space = split(overrides, optuna.distributions)
    if not space:
        raise ConfigError("nothing to tune: give a key several values, as method.mu='interval(0.01,1)'")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study = optuna.create_study(direction="maximize", sampler=samplers[tuning.sampler](seed=tuning.seed))
    trials: list[Trial] = []
    with jobs.counted(0, tuning.trials * len(repeats)):
        while len(trials) < tuning.trials:
            asked = [study.ask(space) for _ in range(min(tuning.at_once, tuning.trials - len(trials)))]
            batch = [Trial(each.number, dict(each.params)) for each in asked]
            _run(sweeper, batch, fixed, repeats, len(trials) * len(repeats))
            for each, trial in zip(asked, batch, strict=True):
                known = trial.score == trial.score  # not nan
                study.tell(each, trial.score if known else None, None if known else optuna.trial.TrialState.FAIL)
            trials += batch
    return _conclude(trials, list(space))


def _run(
    sweeper: Any, batch: Sequence[Trial], fixed: Sequence[str], repeats: Sequence[Sequence[str]], first: int
) -> None:
    """Launch the runs of a batch of trials and hand each trial its outcomes."""
    launches = [
        [*fixed, *(f"{key}={value}" for key, value in trial.values.items()), *repeat]
        for trial in batch
        for repeat in repeats
    ]
    outcomes = session.launched(sweeper, launches, first)
    for outcome in outcomes:
        jobs.keep(outcome)
    for index, trial in enumerate(batch):
        trial.outcomes = outcomes[index * len(repeats) : (index + 1) * len(repeats)]


def _conclude(trials: Sequence[Trial], params: Sequence[str]) -> dict[str, Any]:
    """Print the five best trials and what the best scores on test data; write the files of a named sweep."""
    ranked = sorted((t for t in trials if t.score == t.score), key=lambda trial: -trial.score)
    if all(outcome.row is None for trial in trials for outcome in trial.outcomes):
        raise FedbenchError("every run of the trials failed; what failed is said above")
    if not ranked:
        raise FedbenchError("no trial has a validation score; an earlier run may lack it: force=true repeats it")
    shown = Table(title=f"best of {len(trials)} trials by validation score", title_justify="left")
    for heading in ("trial", *params, "validation %"):
        shown.add_column(heading, justify="right")
    for trial in ranked[:5]:
        shown.add_row(str(trial.number), *(str(trial.values[key]) for key in params), decimals(trial.score))
    say(shown, console=Output())
    best = ranked[0]
    say("best:", best.overrides(params))
    say(f"its test score, which chose nothing: {decimals(best.mean('score'))} %")
    if (best.outcomes[0].plain.get("sweep") or {}).get("name"):
        say(f"trials and figure: {_write(trials, best, params)}")
    return dict(best.values)


def _write(trials: Sequence[Trial], best: Trial, params: Sequence[str]) -> Path:
    """Write best.txt (the best's overrides), the runs, figure.svg and figure.png.

    Write trials.csv with a line for each trial: its values, validation accuracy `val` (nan: failed), number of seeds.
    """
    import pandas as pd

    lines = [
        {"trial": trial.number, **{key: trial.values[key] for key in params}}
        | {"val": trial.score, "seeds": len(trial.outcomes)}
        for trial in trials
    ]
    frame = pd.DataFrame(lines)
    finished = [outcome for trial in trials for outcome in trial.outcomes if outcome.row is not None]
    sweep = best.outcomes[0].plain["sweep"]
    name = str(sweep["name"])
    keys = [key.lstrip("+") for key in params]
    folder = Path(str(sweep["folder"])) / session.folder_name(f"{name}-optuna", finished, keys)
    session.write_runs(folder, session.tidy(finished, keys))
    write_text(folder / "trials.csv", frame.to_csv(index=False))
    write_text(folder / "best.txt", f"{best.overrides(params)}\n")
    with style.styled(folder.name):
        style.save_as(plots.tuning_trials(frame, params, name), folder / "figure")
    return folder
