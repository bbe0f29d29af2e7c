"""What a command line lets Optuna choose from, and what it repeats over seeds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedbench.sweeps.table import SEEDS

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


def split(
    overrides: Sequence[Override], distributions: Any
) -> tuple[list[str], list[list[str]], dict[str, Any]]:
    """(overrides of every run, the combinations of swept seeds, key -> Optuna's distribution)."""
    fixed, seeds, space = {}, [], {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            fixed[key] = f"{key}={override.get_value_element_as_str()}"
        elif key.lstrip("+") in SEEDS:  # repeats of every trial, not choices
            seeds.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            space[key] = distribution(override, distributions)
    return list(fixed.values()), [list(each) for each in itertools.product(*seeds)], space


def distribution(override: Override, distributions: Any) -> Any:
    """Optuna's distribution for interval(a,b), tag(log,interval(a,b)), range(a,b,step), or a choice."""
    from hydra.core.override_parser.types import IntervalSweep, RangeSweep

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
