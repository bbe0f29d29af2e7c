"""The samples that each client trains, validates and tests on, and how a partition's assignment gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.config.schema import TestConfig
from fedbench.core.errors import ConfigError, DataCorrupt, unknown
from fedbench.core.files import as_npz, write_bytes
from fedbench.core.rng import numpy_rng
from fedbench.data.dataset import PARTS as SETS
from fedbench.data.dataset import Dataset, Ints
from fedbench.data.partitions.base import CORNERS, Assignment, PartitionSpec, Pool
from fedbench.data.partitions.file import read_arrays

LISTED = 20_000  # clients at most whose samples are arrays of their own in a file


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each client trains, validates and tests on: sorted, into train followed by test."""

    label: str
    seed: int
    dataset: str  # name-fingerprint of the data set
    classes: int
    train: list[Ints]  # of each client, never empty
    val: list[Ints]
    test: list[Ints]  # empty if only the global test set is scored, or for a client with a single sample
    rotation: np.ndarray | None = None  # float64 [N], degrees, counter-clockwise
    corners: str = "mean"  # how a rotation fills the corners (fedbench.data.federation)
    label_map: Ints | None = None  # [N, classes]: a client sees label y as label_map[client, y]
    looks: np.ndarray | None = None  # float64 [N, classes, 2] of each label's images: see Federation

    def __len__(self) -> int:
        return len(self.train)

    def repeated(self, times: int) -> Partition:
        """Return the clients repeated `times` times, each time with the same samples.

        Raises:
            ConfigError: clients alter their samples, so no other client can share them.
        """
        if self.altered:
            raise ConfigError(f"partition {self.label} alters samples, so a sample can be on one client only")
        return replace(self, **{name: getattr(self, name) * times for name in SETS})

    @property
    def altered(self) -> bool:
        """Whether clients see other images or labels than the data set has."""
        return any(each is not None for each in (self.rotation, self.label_map, self.looks))

    @cached_property
    def hash(self) -> str:
        """12 hex digits over the data set and every client's samples and transforms, without label and seed.

        So a split that was made elsewhere and read from a file has the hash of the same split made here.
        """
        digest = hashlib.sha256(f"{self.dataset} {self.classes} {len(self)}".encode())
        for name in SETS:
            for samples in getattr(self, name):
                digest.update(f"|{len(samples)}:".encode() + np.asarray(samples, dtype="<i8").tobytes())
        for name in ("rotation", "label_map"):
            value = getattr(self, name)
            digest.update(b"|none" if value is None else f"|{value.dtype.str}".encode() + value.tobytes())
        digest.update(b"" if self.rotation is None else f"|{self.corners}".encode())
        digest.update(b"" if self.looks is None else b"|looks" + self.looks.tobytes())
        return digest.hexdigest()[:12]

    def label_counts(self, y: Ints) -> Ints:
        """Training and validation samples of each label, as the client sees it: int64 [N, classes]."""
        counts = np.zeros((len(self), self.classes), dtype=np.int64)
        for client, parts in enumerate(zip(self.train, self.val, strict=True)):
            labels = y[np.concatenate(parts)]
            if self.label_map is not None:
                labels = self.label_map[client][labels]
            counts[client] = np.bincount(labels, minlength=self.classes)
        return counts

    def statistics(self, y: Ints) -> list[dict[str, int]]:
        """One row for each client: samples of each set, and of each class (`class_<c>`, training and validation)."""
        return [
            {"client": client}
            | {name: len(getattr(self, name)[client]) for name in SETS}
            | {f"class_{label}": int(count) for label, count in enumerate(counts)}
            for client, counts in enumerate(self.label_counts(y))
        ]

    def save(self, path: Path) -> None:
        """Write the exchange form, atomically: `train_<i>`, `val_<i>`, `test_<i>` of each client, and their origin.

        More than `LISTED` clients, each of which takes half a kilobyte, are in `train`, `val` and `test` end to end.
        """
        sets = {name: getattr(self, name) for name in SETS}
        arrays: dict[str, Any] = {}
        for name, lists in sets.items():
            if len(self) <= LISTED:
                arrays |= {f"{name}_{i}": samples for i, samples in enumerate(lists)}
            else:
                arrays |= {name: np.concatenate(lists), f"{name}_sizes": np.array([*map(len, lists)])}
        names = ("label", "seed", "dataset", "classes", "rotation", "label_map", "looks")
        for name in (*names, *(() if self.rotation is None else ("corners",))):
            if getattr(self, name) is not None:
                arrays[name] = np.array(getattr(self, name))
        write_bytes(path, as_npz(arrays))

    @classmethod
    def load(cls, path: Path) -> Partition:
        """Read what `save` wrote.

        Raises:
            DataMissing: there is no such file.
            DataCorrupt: not a file of this form, or a damaged one.
        """
        try:
            arrays = read_arrays(path)
            clients = range(sum(name.startswith("train_") for name in arrays))
            sets = {name: [arrays[f"{name}_{i}"].astype(np.int64) for i in clients] for name in SETS}
            return cls(
                label=str(arrays["label"]),
                seed=int(arrays["seed"]),
                dataset=str(arrays["dataset"]),
                classes=int(arrays["classes"]),
                rotation=arrays.get("rotation"),
                corners=str(arrays.get("corners", "mean")),
                label_map=arrays.get("label_map"),
                looks=arrays.get("looks"),
                **sets,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataCorrupt(f"{path} is no partition written by fedbench ({error})") from error


# From a partition's assignment to the train, validation and test samples of every client.


def make_partition(spec: PartitionSpec, dataset: Dataset, test: TestConfig, seed: int) -> Partition:
    """Divide `dataset` among clients: a function of its arguments alone.

    Raises:
        ConfigError: the settings are impossible, or would test on training samples.
    """
    pooled = test.pool or spec.pools
    _refuse_contradictions(spec, dataset, test, pooled)
    index = np.arange(len(dataset) if pooled else dataset.num_train)
    domain = None if dataset.domain is None else dataset.domain[index]
    origin = f"{dataset.name}-{dataset.fingerprint}"
    part = None if dataset.part is None else dataset.part[index]
    tested = len(index) - dataset.num_train if pooled else 0
    labels = np.asarray(dataset.y[index])
    pool = Pool(index, labels, dataset.classes, domain, origin, part, dataset.rows, tested, seed)
    assignment = spec.assign(pool, numpy_rng(seed, "partition", spec.label))
    train, tests = _train_test(assignment, test, spec.label, seed)
    val: Sequence[Ints] | None = assignment.val
    if val is None:
        train, val = _split(train, test.val_fraction, seed, spec.label, "val", shared=assignment.shared)
    partition = Partition(
        label=spec.label,
        seed=seed,
        dataset=origin,
        classes=dataset.classes,
        train=[np.sort(part) for part in train],
        val=[np.sort(part) for part in val],
        test=[np.sort(part) for part in tests],
        rotation=assignment.rotation,
        corners=assignment.corners,
        label_map=assignment.label_map,
        looks=assignment.looks,
    )
    _check(partition, dataset, assignment)
    _check_test(partition, assignment, dataset, test)
    return partition


def _refuse_contradictions(spec: PartitionSpec, dataset: Dataset, test: TestConfig, pooled: bool) -> None:
    if dataset.target is not None and spec.by_label:
        raise ConfigError(
            f"partition {spec.label} divides classes, and dataset.task=regression has none; use partition=homo, "
            "quantity0.5, file, or natural where the data name their clients"
        )
    if test.whole and pooled:
        source = f"partition {spec.label} trains" if spec.pools else "protocol.test.pool=true trains"
        raise ConfigError(
            f"{source} on the test split too, so it cannot be the global test set; use protocol.test.sets=local"
            f"{'' if spec.pools else ', or protocol.test.pool=false'}"
        )
    if test.whole and dataset.num_train == len(dataset):
        raise ConfigError(f"{dataset.name} has no test split; use protocol.test.sets=local")
    if test.sets != "global" and test.fraction == 0 and not spec.fixes_test:
        raise ConfigError(
            f"protocol.test.sets={test.sets} needs protocol.test.fraction above 0 with partition {spec.label}"
        )


def _train_test(
    assignment: Assignment, test: TestConfig, label: str, seed: int
) -> tuple[Sequence[Ints], Sequence[Ints]]:
    if assignment.train is not None and assignment.test is not None:
        return assignment.train, assignment.test
    if assignment.clients is None:
        raise ConfigError(f"partition {label} assigned neither clients nor train and test sets")
    fraction = 0.0 if test.sets == "global" else test.fraction
    return _split(assignment.clients, fraction, seed, label, "test", shared=assignment.shared)


def _split(
    clients: Sequence[Ints], fraction: float, seed: int, *keys: str, shared: bool = False
) -> tuple[list[Ints], list[Ints]]:
    """Return (kept, held out) samples of each client: `held_out(n, fraction)` random ones of its n are held out.

    `shared`: clients hold the same samples, so they are held out of all clients' samples, for all who hold them.
    """
    if fraction == 0:
        return [*clients], [np.zeros(0, dtype=np.int64)] * len(clients)
    if shared:
        _, (chosen,) = _split([np.unique(np.concatenate(clients))], fraction, seed, *keys)
        inside, outside = ([part[np.isin(part, chosen) == yes] for part in clients] for yes in (True, False))
        return outside, inside
    kept, held = [], []
    for client, samples in enumerate(clients):
        count = held_out(len(samples), fraction)
        order = numpy_rng(seed, "split", *keys, client).permutation(np.sort(samples))
        kept.append(order[count:])
        held.append(order[:count])
    return kept, held


def held_out(samples: int, fraction: float) -> int:
    """Return the number of `samples` to hold out: the nearest number (half up), but at least one and never all.

    It is 0 for fraction 0; a single sample is kept for training.
    """
    if fraction == 0 or samples < 2:
        return 0
    return min(max(int(fraction * samples + 0.5), 1), samples - 1)


def _check(partition: Partition, dataset: Dataset, assignment: Assignment) -> None:
    """Check that every client trains on samples, transforms fit, and samples repeat only as `assignment` says."""
    label, clients = partition.label, len(partition)
    empty = [client for client, part in enumerate(partition.train) if len(part) == 0]
    if empty:
        raise ConfigError(f"partition {label} leaves client {empty[0]} without a training sample")
    used = np.concatenate([part for name in SETS for part in getattr(partition, name)])
    if not 0 <= used.min() <= used.max() < len(dataset):
        wrong = used.min() if used.min() < 0 else used.max()
        raise ConfigError(
            f"partition {label} uses sample {wrong}{'' if wrong >= 0 else f' (unsigned {int(wrong) + 2**64})'}, the "
            f"data set has {len(dataset)}; number them from 0"
        )
    by_label = (clients, dataset.classes)
    shapes = {"rotation": (clients,), "label_map": by_label, "looks": (*by_label, 2)}
    for name, shape in shapes.items():
        value = getattr(partition, name)
        if value is not None and value.shape != shape:
            raise ConfigError(f"partition {label}: {name} must have shape {shape}, got {value.shape}")
    if partition.rotation is not None and not np.isfinite(partition.rotation).all():
        raise ConfigError(f"partition {label}: rotation must be finite")
    if partition.corners not in CORNERS:
        raise unknown(f"corners of partition {label}", partition.corners, CORNERS)
    names = partition.label_map
    if names is not None and not 0 <= names.min() <= names.max() < dataset.classes:
        raise ConfigError(f"partition {label}: label_map must hold labels below {dataset.classes}")
    _check_leaks(partition, len(dataset))
    owned = [np.concatenate(parts) for parts in zip(*(getattr(partition, name) for name in SETS), strict=True)]
    owned = [*map(np.unique, owned)] if assignment.repeats else owned
    for samples in owned if assignment.shared else [np.concatenate(owned)]:
        if len(np.unique(samples)) != len(samples):
            raise ConfigError(
                f"partition {label} hands out a sample more than once; only with partition.shared=true may several "
                "clients have it, each once"
            )


def _check_leaks(partition: Partition, samples: int) -> None:
    """Check that no client's test set contains a sample that any client trains or validates on."""
    trainer = np.full(samples, -1)  # a client that trains or validates on each sample
    for client, parts in enumerate(zip(partition.train, partition.val, strict=True)):
        trainer[np.concatenate(parts)] = client
    for tester, tests in enumerate(partition.test):
        leaked = tests[trainer[tests] >= 0]
        if len(leaked):
            raise ConfigError(
                f"partition {partition.label} leaks: sample {leaked[0]} is for training on client {trainer[leaked[0]]} "
                f"and for testing on client {tester}; a sample belongs to one of them (training samples count first)"
            )


def _check_test(partition: Partition, assignment: Assignment, dataset: Dataset, test: TestConfig) -> None:
    """Check that there are test samples, of the clients' kind, and that no client trains on them."""
    needed = {"test": test.sets != "global", "val": test.val_fraction > 0}
    for name, field in (("test", "fraction"), ("val", "val_fraction")):
        if needed[name] and not any(map(len, getattr(partition, name))):
            fixed = getattr(assignment, name) is not None
            way = f"a larger protocol.test.{field}, or fewer clients with more samples each"
            raise ConfigError(
                f"partition {partition.label} leaves none of {len(partition)} clients a {name} sample, so nothing can "
                f"be scored: {'the partition itself gives none' if fixed else way}"
            )
    turned = partition.looks is not None or (partition.rotation is not None and partition.rotation.any())
    renamed = partition.label_map is not None and (partition.label_map != np.arange(partition.classes)).any()
    if test.whole and (turned or renamed):
        raise ConfigError(
            f"partition {partition.label} alters samples, but the global test set would be scored unaltered; use "
            "protocol.test.sets=local"
        )
    trained = max(part.max(initial=-1) for part in (*partition.train, *partition.val))
    if test.whole and trained >= dataset.num_train:
        raise ConfigError(
            f"partition {partition.label} leaks: its training sample {trained} is in the global test set; use "
            "protocol.test.sets=local"
        )
