"""Run every method and network on the pretend accelerator, and write what fails, differs and waits.

    python scripts/accelerator.py [--out FILE] [NAME...]

Twenty clients, three rounds, all scored, a checkpoint before the last round, by both engines; see
fedbench/testing/accelerator.py. NAME: only those presets and networks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fedbench.config import compose
from fedbench.config.schema import OptimizerConfig
from fedbench.engine.setup import Setup
from fedbench.engine.train.trainer import Engine, Trainer
from fedbench.methods.fedavg import FedAvg
from fedbench.models import MODELS
from fedbench.testing.pair import UNLIKE, serving, trainer
from fedbench.testing.pretended import ENGINES, Trial, federated, of_kinds, trial
from fedbench.testing.subject import Subject
from fedbench.testing.toys import federation, setup

ROOT = Path(__file__).resolve().parents[1]
COHORTS = (4, 16)
Toy = Callable[[torch.device], Setup]
Build = Callable[[Setup], Trainer]
NETWORKS = {
    "mlp": (1, 28, 28),
    "lenet5": (3, 32, 32),
    "cnn5": (3, 32, 32),
    "simple_cnn": (3, 32, 32),
    "fedrema_cnn": (1, 28, 28),
    "fedrema_alexnet": (3, 32, 32),
    "cub_cnn": (3, 64, 64),
    "resnet18": (3, 32, 32),
    "mobilenet_v2": (3, 32, 32),
    "squeezenet": (3, 32, 32),
    "textcnn": (1, 1, 14),
}
FIELDS: dict[str, dict[str, object]] = {
    **{name: {"pretrained": False} for name in ("resnet18", "mobilenet_v2", "squeezenet")},
    "textcnn": {"vocabulary": 9},
}
HEAD = """# On a pretend accelerator

Every preset and network under a GPU's rules of placement, on tensors that compute on the CPU (`make accelerator`).
Differences are from the same run on the CPU, the largest of any leaf or score. Waits are the host's for the device: of
all local steps together, and of the round with most, scoring included. torch {torch}.
"""


def methods(names: Sequence[str], write: Callable[[str], None]) -> None:
    """A row a preset."""
    _head(write, "method")
    for name in names:
        subject = Subject.of(name)
        _cohorts(write, name, lambda cohort, of=subject: federated(of, "mlp", cohort), lambda build: build)


def kinds(names: Sequence[str], write: Callable[[str], None]) -> None:
    """A row a method that serves clients of several kinds; two kinds, each on an engine of its own."""
    _head(write, "method, clients of two kinds")
    for name in names:
        method = serving(name)
        _cohorts(
            write,
            name,
            lambda cohort, of=method: of_kinds(of, cohort),
            lambda build: lambda chosen: trainer(chosen, build),
        )


def _head(write: Callable[[str], None], first: str) -> None:
    waits = " | ".join(f"{engine}, {cohort} clients" for engine in ENGINES for cohort in COHORTS)
    write(f"\n| {first} | error | differs by | waits in steps | waits a round: {waits} |")
    write("| --- " * (4 + len(ENGINES) * len(COHORTS)) + "|")


def _cohorts(
    write: Callable[[str], None],
    name: str,
    toy: Callable[[int], Toy],
    build: Callable[[Callable[[Setup], Engine]], Build],
) -> None:
    """The row of the toy with cohorts of few and of many, by each engine."""
    found = [attempt(toy(cohort), build(ENGINES[engine])) for engine in ENGINES for cohort in COHORTS]
    waits = (f" {each.round} |" if isinstance(each, Trial) else " |" for each in found)
    write(row(name, found) + "".join(waits))


def networks(names: Sequence[str], write: Callable[[str], None]) -> None:
    """A row a network, trained by FedAvg."""
    write("\n| network | error | differs by | waits in steps | operations a step (views): looped | stacked |")
    write("| --- " * 6 + "|")
    for name in names:
        found = [attempt(toy(name), build) for build in ENGINES.values()]
        counts = [f" {e.operations:.0f} ({e.views:.0f}) |" if isinstance(e, Trial) else " |" for e in found]
        write(row(name, found) + "".join(counts))


def toy(network: str) -> Toy:
    """Two clients with full batches of eight."""
    model = MODELS.build({"name": network, **FIELDS.get(network, {})})
    optimizer = OptimizerConfig(lr=0.01)

    def made(device: torch.device) -> Setup:
        data = federation((16, 16), NETWORKS[network], classes=10, device=device)
        return setup(FedAvg(), data, model, rounds=2, epochs=1, optimizer=optimizer)

    return made


def attempt(toy: Toy, build: Build) -> Trial | Exception:
    """The trial, or what ended it."""
    try:
        return trial(toy, build)
    except Exception as error:  # noqa: BLE001 - it is what the table is for
        return error


def row(name: str, found: Sequence[Trial | Exception]) -> str:
    """The first cells of a row."""
    errors = {str(each).splitlines()[0] for each in found if isinstance(each, Exception)}
    trials = [each for each in found if isinstance(each, Trial)]
    apart, steps = max((t.apart for t in trials), default=0.0), sum(t.step for t in trials)
    return f"| {name} | {'; '.join(sorted(errors)) or 'none'} | {apart:.0e} | {steps} |"


def main() -> None:
    """Rows are written as they come."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench" / "accelerator.md")
    arguments = parser.parse_args()
    presets = sorted(file.stem for file in (compose.conf_dir() / "method").glob("*.yaml"))
    with arguments.out.open("w", encoding="utf-8") as file:

        def write(line: str) -> None:
            print(line, flush=True)
            print(line, file=file, flush=True)

        write(HEAD.format(torch=torch.__version__))
        chosen = arguments.names
        methods([name for name in presets if not chosen or name in chosen], write)
        kinds([name for name in UNLIKE if not chosen or name in chosen], write)
        networks([name for name in NETWORKS if not chosen or name in chosen], write)


if __name__ == "__main__":
    main()
