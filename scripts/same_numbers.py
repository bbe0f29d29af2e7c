"""Note that today's code gives the numbers of an earlier commit's, so that what that commit made is not marked.

    python scripts/same_numbers.py COMMIT "what was changed"

Runs every method, also with validation samples and inside those that take one, every model, partition and protocol for
a few rounds on procedural data, with the code of COMMIT and with today's. Where a part's code (method, model,
partition, engine) differs and every run that it took part in is equal to the bit, models, scores, bytes and arrays, a
line is appended to fedbench/runs/same_numbers.csv. Other parts are printed with the runs that differ. Runs are one
client at a time, the plain loop that tests hold the other engines to. Lines that lead from no code of a result under
results/ are dropped.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from fedbench.config import groups
from fedbench.config.compose import compose
from fedbench.core.errors import FedbenchError
from fedbench.engine.hardware import pick_trainer
from fedbench.runs import execution, fingerprint
from fedbench.runs.config import resolve
from fedbench.testing.checks import everything
from fedbench.testing.toys import simulate

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ("dataset=synthetic", "dataset.train=240", "dataset.test=60")
CLIENTS = ("partition=dir0.3", "partition.num_clients=5")
ROUNDS = ("protocol=quick", "protocol.rounds=3", "protocol.local.epochs=1", "protocol.eval_every=1")
SMALL = (*SAMPLES, *CLIENTS, *ROUNDS)
CAPTIONED = ("dataset=captioned", "dataset.train=120", "dataset.test=30", *CLIENTS, *ROUNDS)
WIDE = ("dataset.channels=3", "dataset.size=32")  # as networks for pictures need
# As partitions need.
MANY = ("dataset=synthetic", "dataset.size=6", "dataset.train=16000", "dataset.test=4000")
SHORT = ("method=fedavg", "protocol.rounds=1")
SHORTER = ("method.discriminator.rounds=3", "model.pretrained=false")  # where there is such a setting
# Key -> (the run, its code by part, the hash of its numbers).
Found = dict[str, tuple[str, dict[str, str], str]]
Change = tuple[str, str, str]  # part, old code, new code
Line = list[str]  # of same_numbers.csv
TEXTS = (".csv", ".json")
CODE = re.compile(r"\b(method|model|partition|engine):([0-9a-f]{12})\b")


def runs() -> Iterator[list[str]]:
    """The overrides of each run; some are refused, as those of a network that needs a file of weights."""
    for method in groups.names("method"):
        yield from ([*SMALL, f"model={model}", f"method={method}"] for model in ("mlp", "lenet5_bn"))
        yield [*SMALL, "protocol.test.val_fraction=0.2", "model=mlp", f"method={method}"]
        yield [*CAPTIONED, "model=small_pair", f"method={method}"]
        if "base" in compose([f"method={method}"]).method:
            yield from ([*SMALL, f"method={method}", f"method/base={base}"] for base in groups.names("method"))
    for model in groups.names("model"):
        yield from ([*where, f"model={model}", *SHORT] for where in ((*SMALL, *WIDE), CAPTIONED))
    for partition in groups.names("partition"):
        yield [*MANY, *ROUNDS, f"partition={partition}", *SHORT]
    for protocol in groups.names("protocol"):
        yield [*SAMPLES, *CLIENTS, f"protocol={protocol}", *ROUNDS[1:], "model=mlp", "method=fedavg"]
    yield ["dataset=fashion_mnist", *ROUNDS, "partition=fedcollab_label_shift_seed0", *SHORT]


def within_reach(overrides: list[str]) -> DictConfig:
    """The config, with what would take long made short, and what begins late begun within the few rounds."""
    config = compose(overrides)
    more = [each for each in SHORTER if OmegaConf.select(config, each.partition("=")[0]) is not None]
    if (OmegaConf.select(config, "method.start_round") or 0) > config.protocol.rounds:
        more.append("method.start_round=2")
    return compose([*overrides, *more, "hardware=cpu", "hardware.engine=looped"])


def numbers(overrides: list[str]) -> tuple[str, dict[str, str], str]:
    """A run's key, the code that decides its numbers, and a hash of all of them, timings apart.

    Raises:
        FedbenchError: the settings do not go together.
    """
    run = resolve(within_reach(overrides))
    setup = execution.set_up(run, *execution.split_data(run)).seen
    digest = hashlib.sha256()
    for name, leaf in sorted(everything(simulate(setup, pick_trainer(setup, run.hardware))).items()):
        digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        digest.update(leaf.contiguous().numpy().tobytes())
    return run.key, dict(part.split(":") for part in fingerprint.code_of(run).split()), digest.hexdigest()


def write_numbers(path: Path) -> None:
    """Write those of all runs that the code in reach can do, as JSON."""
    found: Found = {}
    for overrides in runs():
        try:
            key, code, digest = numbers(overrides)
        except (FedbenchError, HydraException):
            continue
        found[key] = " ".join(each for each in overrides if each not in SMALL), code, digest
    path.write_text(json.dumps(found))


def numbers_of(folder: Path) -> Found:
    """Return those of the source in `folder`, found by its own copy of this script in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "numbers.json"
        environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, str(folder / "scripts" / "same_numbers.py"), "--write", str(path)],
            check=True,
            env=environment,
            cwd=scratch,
        )
        found: Found = json.loads(path.read_text())
    return found


def compare(old: Found, new: Found) -> tuple[dict[Change, int], dict[Change, list[str]]]:
    """Of runs that have one key in both: the changes whose runs are all equal, with their number, and the others."""
    took_part: dict[Change, list[str]] = {}
    for key in old.keys() & new.keys():
        for part, then in old[key][1].items():
            now = new[key][1].get(part)
            if now not in (None, then):
                took_part.setdefault((part, then, now), []).append(key)
    apart = {
        change: sorted(new[key][0] for key in keys if old[key][2] != new[key][2]) for change, keys in took_part.items()
    }
    same = {change: len(keys) for change, keys in took_part.items() if not apart[change]}
    return same, {change: runs for change, runs in apart.items() if runs}


def recorded(results: Path) -> set[tuple[str, str]]:
    """(part, hash) of all code that made what is in the text files below `results`."""
    return {found for text in _texts(results) for found in CODE.findall(text)}


def _texts(results: Path) -> Iterator[str]:
    """The CSV and JSON files below `results`, and those in its archives."""
    for file in results.rglob("*"):
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                yield from (archive.read(name).decode() for name in archive.namelist() if name.endswith(TEXTS))
        elif file.name.endswith(TEXTS):
            yield file.read_text(encoding="utf-8")


def needed(lines: Sequence[Line], codes: set[tuple[str, str]]) -> list[Line]:
    """Those of `lines` (part, old, new, reason) that lead on from one of `codes`, in their order."""
    reached: set[tuple[str, str]] = set()
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        if code not in reached:
            reached.add(code)
            waiting += [(part, new) for part, old, new, _ in lines if (part, old) == code]
    return [line for line in lines if tuple(line[:2]) in reached]


def main(arguments: list[str]) -> int:
    """Compare, and append what is equal; returns the exit code."""
    if len(arguments) == 2 and arguments[0] == "--write":
        write_numbers(Path(arguments[1]))
        return 0
    if len(arguments) != 2 or not arguments[1].strip():
        print(__doc__, file=sys.stderr)
        return 2
    commit, change = arguments
    with tempfile.TemporaryDirectory() as earlier, ThreadPoolExecutor(2) as both:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(earlier, filter="data")
        same, apart = compare(*both.map(numbers_of, (Path(earlier), ROOT)))
    same = {each: count for each, count in same.items() if fingerprint.changed(":".join(each[:2]), ":".join(each[::2]))}
    with fingerprint.SAME_NUMBERS.open(encoding="utf-8", newline="") as handle:
        head, *lines = csv.reader(handle)
    for (part, then, now), count in sorted(same.items()):
        reason = f"{change}; {count} runs equal those of {commit} to the bit (scripts/same_numbers.py)"
        lines.append([part, then, now, reason])
    kept = needed(lines, recorded(ROOT / "results"))
    with fingerprint.SAME_NUMBERS.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle, lineterminator="\n").writerows([head, *kept])
    print(f"{fingerprint.SAME_NUMBERS}: {len(same)} changes were the same, {len(kept)} lines lead from results")
    for (part, then, now), each in sorted(apart.items()):
        print(f"{part} {then} -> {now} gives other numbers: {'; '.join(each)}")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
