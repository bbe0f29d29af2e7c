"""Numbers that the result pages quote and no table holds, counted anew: results/evidence/NAME.csv.

    python scripts/evidence.py [fold_groups] [coalitions]

`fold_groups`: how far apart LDA puts the five groups of SosicFL's 5-Fold, by endpoints and seed (100 clients; two
minutes of one core). `coalitions`: whether FedCollab finds the published coalitions of label shift on Fashion-MNIST, by
what its discriminators see, when they are read, and the partition (no model is trained).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from fedbench.config.compose import compose
from fedbench.core import rng
from fedbench.core.files import write_csv
from fedbench.data.partitions.groups import Fold
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.preparation import EnginePreparation
from fedbench.engine.setup import Setup
from fedbench.methods.parts import simplex
from fedbench.runs.building import build
from fedbench.runs.config import resolve

OUT = Path(__file__).resolve().parents[1] / "results" / "evidence"
Line = dict[str, object]

ENDPOINTS = (3, 5, 6, 10)
TOPIC_SEEDS = 12
GROUPS, MEMBERS = 5, 20  # of 5-Fold with 100 clients, one group after another

DRAWS = 5  # seeds, the tables'
MORE = 20  # of redrawn partitions whose discriminators are read last, which takes seconds
PLANTED = [0] * 5 + [1] * 5 + [2] * 10
LABEL_SHIFT = ["dataset=fashion_mnist", "model=mlp", "protocol=fedcollab_label_shift"]
PARTITIONS = ("label_shift", "fedcollab_label_shift_seed0")
READINGS = {
    "unit, last": ["method=fedcollab"],
    "normalised, last": ["method=fedcollab", "method.inputs=normalised"],
    "normalised, best": ["method=fedcollab_code"],
}


def fold_groups() -> Iterator[Line]:
    """The L1 distance of the two nearest of the five groups' mean positions, of at most 2."""
    counts = Fold(folds=GROUPS).counts(np.full(10, 5000)).astype(float)
    for endpoints in ENDPOINTS:
        for seed in range(TOPIC_SEEDS):
            yield {"endpoints": endpoints, "seed": seed, "nearest": f"{nearest(counts, endpoints, seed):.3f}"}


def nearest(counts: np.ndarray, endpoints: int, seed: int) -> float:
    """Of label counts [GROUPS * MEMBERS, K]."""
    found = simplex.topics(counts, endpoints, rng.derive(seed, "topics"))
    means = found.reshape(GROUPS, MEMBERS, -1).mean(1)
    return min(float(np.abs(means[a] - means[b]).sum()) for a in range(GROUPS) for b in range(a))


def coalitions() -> Iterator[Line]:
    """The coalitions by seed; `published` where they are {0-4} {5-9} {10-19}."""
    for partition in PARTITIONS:
        for reading, overrides in READINGS.items():
            redrawn = partition == PARTITIONS[0] and reading.endswith("last")
            for seed in range(MORE if redrawn else DRAWS):
                run = resolve(compose([*LABEL_SHIFT, f"partition={partition}", *overrides, f"seed={seed}"]))
                found = pd.factorize(prepared(build(run)))[0].tolist()  # numbered in the order in which they appear
                yield {
                    "partition": partition,
                    "discriminators": reading,
                    "seed": seed,
                    "published": int(found == PLANTED),
                    "coalitions": " ".join(map(str, found)),
                }


def prepared(setup: Setup) -> np.ndarray:
    """Each client's coalition, before anything is trained."""
    server, memory = setup.method.init(setup.task, setup.population, rng.torch_rng(setup.seed, "init"))
    preparation = EnginePreparation(setup, LoopedTrainer(setup), Clock(0, setup.protocol.rounds))
    setup.method.prepare(preparation, server, memory)
    return np.asarray(preparation.arrays["coalition"])


EVIDENCE: dict[str, Callable[[], Iterator[Line]]] = {"fold_groups": fold_groups, "coalitions": coalitions}


def main() -> None:
    """Write what is asked for, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=" or ".join(EVIDENCE))
    for name in parser.parse_args().names or EVIDENCE:
        if name not in EVIDENCE:
            parser.error(f"no evidence '{name}'; there is {' and '.join(EVIDENCE)}")
        lines = list(EVIDENCE[name]())
        OUT.mkdir(exist_ok=True)
        write_csv(OUT / f"{name}.csv", lines)
        print(OUT / f"{name}.csv")


if __name__ == "__main__":
    main()
