"""Recorders by name: `record=[cka,similarity@1,50]` looks at layers at the end, at classifiers after two rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedbench.config.fields import Registry
from fedbench.core.errors import ConfigError
from fedbench.engine.recording import PREFIX, ROUND, Recorder

RECORDERS: Registry[Recorder] = Registry(
    "recorder",
    {
        "cka": "fedbench.recorders.models:CKA",
        "classifier_cosine": "fedbench.recorders.models:ClassifierCosine",
        "collaboration": "fedbench.recorders.methods:Collaboration",
        "complementarity": "fedbench.recorders.methods:Complementarity",
        "model_cosine": "fedbench.recorders.models:ModelCosine",
        "similarity": "fedbench.recorders.methods:Similarity",
        "simplex": "fedbench.recorders.simplex:Simplex",
        "update_cosine": "fedbench.recorders.models:UpdateCosine",
        "update_variance": "fedbench.recorders.models:UpdateVariance",
    },
)


def parse(entries: Sequence[str]) -> tuple[Recorder, ...]:
    """The recorders that a config's `record` lists; a number alone is a further round of the entry before it.

    Raises:
        UnknownName: no such recorder.
        ConfigError: a round that is no number, or without a recorder, or a recorder named twice.
    """
    rounds: dict[str, list[int]] = {}
    for entry in map(str, entries):
        name, _, first = (f"{list(rounds)[-1]}@{entry}" if entry.isdigit() and rounds else entry).partition(
            "@"
        )
        if first and not first.isdigit():
            raise ConfigError(f"record={entry}: rounds are numbers, as in record=[{name}@1,50,100]")
        if name in rounds and not entry.isdigit():
            raise ConfigError(f"record: '{name}' is named twice; list its rounds, as in record=[{name}@1,50]")
        rounds.setdefault(name, []).extend([int(first)] if first else [])
    return tuple(
        RECORDERS.build({"name": name, "rounds": sorted(set(chosen))}) for name, chosen in rounds.items()
    )


def listed(wanted: Iterable[Recorder], kept: Mapping[str, np.ndarray], rounds: int) -> list[str]:
    """What `record` must list for a run of `rounds` to have all that is `wanted`, and what arrays `kept` have."""
    found: dict[str, set[int]] = {}
    for key, array in kept.items():
        parts = key.split("/")
        if parts[0] == PREFIX and parts[-1] == ROUND and parts[1] in RECORDERS:
            found.setdefault(parts[1], set()).update(np.asarray(array).tolist())
    for each in wanted:
        found.setdefault(each.name, set()).update(r for r in range(1, rounds + 1) if each.due(r, rounds))
    return [
        f"{name}@{done}" if place == 0 else str(done)
        for name in sorted(found)
        for place, done in enumerate(sorted(found[name]))
    ]
