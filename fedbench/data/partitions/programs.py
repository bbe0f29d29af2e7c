"""Partitions as their authors' programs draw them, sample by sample: the same rule on NumPy's legacy generator.

`draw` is the seed of the authors' program, and all seeds of a run share that draw. With null each partition seed draws
its own by the same rule. Samples are identified by their position in the data set, so the authors' clients need the
files in their published order.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedbench.config.fields import at_least, one_of, within
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, require_clients
from fedbench.data.partitions.label import SMALLEST_ALPHA
from fedbench.data.partitions.shifts import CLIENTS, TYPE, permutations

if TYPE_CHECKING:
    import torch

LARGEST_SEED = 2**32 - 1  # of NumPy's legacy generator
CLASSES = 10  # of FedReMa's data sets


@dataclass(frozen=True)
class AuthorsProgram(PartitionSpec):
    """An authors' program, run with one seed."""

    draw: int | None = within(0, LARGEST_SEED, 0)  # its seed; null: the partition seed draws one

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        return self.drawn(pool, int(rng.integers(LARGEST_SEED + 1)) if self.draw is None else self.draw)

    @abstractmethod
    def drawn(self, pool: Pool, seed: int) -> Assignment:
        """Return the clients' samples of `pool` as the program deals them with `seed`."""


def by_label(labels: Ints, classes: int, program: np.random.RandomState) -> Iterator[Ints]:
    """Return the places of each label's samples in random order; each label is shuffled when it is reached."""
    for label in range(classes):
        places = np.flatnonzero(labels == label)
        program.shuffle(places)
        yield places


# dir_fedsac<alpha>, homo_fedsac, pathological_fedsac<k>: FedSaC's and pFedGraph's data_partition.py, which are the same
# (yankd22/FedSaC, MediaBrain-SJTU/pFedGraph). Both have 0 as their seed and first draw the honest clients, from the
# generator that shuffles a client's samples in `pathological`. Of 50 or 100 clients FedSaC's draws its cohorts before,
# so there other samples validate than here. Their tables print no deviations.
#
# The last fifth of a client's samples validates, whatever protocol.test.val_fraction says.


@dataclass(frozen=True)
class FedSac(AuthorsProgram):
    """Clients whose last fifth of samples is for validation."""

    num_clients: int = at_least(1, 10)

    def drawn(self, pool: Pool, seed: int) -> Assignment:
        require_clients(self.num_clients, len(pool))
        clients = [pool.index[places] for places in self.clients(pool, seed)]
        cuts = [int(0.8 * len(samples)) for samples in clients]
        return Assignment(
            clients=[samples[:cut] for samples, cut in zip(clients, cuts, strict=True)],
            val=[samples[cut:] for samples, cut in zip(clients, cuts, strict=True)],
        )

    @abstractmethod
    def clients(self, pool: Pool, seed: int) -> list[Ints]:
        """The places in the pool of each client's samples, in the program's order."""


@dataclass(frozen=True)
class FedSacDirichlet(FedSac):
    """Dirichlet over clients, for each class; a client that holds its fair share gets no samples of later classes."""

    name: ClassVar[str] = "dir_fedsac"
    family_field: ClassVar[str] = "alpha"

    alpha: float = at_least(SMALLEST_ALPHA, 0.1)  # small: few clients have a class; large: close to homo
    min_size: int = at_least(1, 10)  # smallest client, training and validation samples together
    max_tries: int = at_least(1, 2000)  # draws before giving up

    def clients(self, pool: Pool, seed: int) -> list[Ints]:
        """As in the class above.

        Raises:
            ConfigError: no draw out of `max_tries` gives every client `min_size` samples.
        """
        program = np.random.RandomState(seed)
        for _ in range(self.max_tries):
            clients = self._try(pool, program)
            if min(map(len, clients)) >= self.min_size and sum(map(len, clients)) == len(pool):
                for samples in clients:
                    program.shuffle(samples)
                return clients
        raise ConfigError(
            f"{self.label}: none of {self.max_tries} draws gave each of {self.num_clients} clients {self.min_size} "
            "samples; raise partition.alpha, or lower partition.min_size or partition.num_clients"
        )

    def _try(self, pool: Pool, program: np.random.RandomState) -> list[Ints]:
        """Return one draw; nobody gets samples of a class whose shares all vanish, as for the smallest alpha."""
        parts: list[list[Ints]] = [[] for _ in range(self.num_clients)]
        held = np.zeros(self.num_clients, dtype=np.int64)
        for places in by_label(pool.labels, pool.classes, program):
            share = program.dirichlet(np.repeat(self.alpha, self.num_clients)) * (held < len(pool) / self.num_clients)
            if not share.sum() > 0:  # nan, too
                continue
            cuts = (np.cumsum(share / share.sum()) * len(places)).astype(int)[:-1]
            for client, part in enumerate(np.split(places, cuts)):
                parts[client].append(part)
                held[client] += len(part)
        return [np.concatenate(part) if part else np.zeros(0, dtype=np.int64) for part in parts]


@dataclass(frozen=True)
class FedSacHomogeneous(FedSac):
    """Shuffle, then cut into equal parts."""

    name: ClassVar[str] = "homo_fedsac"

    def clients(self, pool: Pool, seed: int) -> list[Ints]:
        return np.array_split(np.random.RandomState(seed).permutation(len(pool)), self.num_clients)


@dataclass(frozen=True)
class FedSacPathological(FedSac):
    """Each client has a block of classes; a block's clients take equal runs of each class, in the files' order."""

    name: ClassVar[str] = "pathological_fedsac"
    family_field: ClassVar[str] = "skew"

    skew: int = at_least(1, 2)  # classes of a client; must divide the number of classes

    def clients(self, pool: Pool, seed: int) -> list[Ints]:
        """As in the class above.

        Raises:
            ConfigError: `skew` does not divide the classes, or their blocks the clients.
        """
        blocks = pool.classes // self.skew
        if pool.classes % self.skew or self.num_clients % blocks:
            raise ConfigError(
                f"{self.label} gives {self.num_clients} clients blocks of {self.skew} of {pool.classes} classes; "
                "partition.skew must divide the classes, and the number of blocks partition.num_clients"
            )
        sharers = self.num_clients // blocks
        shuffler, found = random.Random(seed), []
        shuffler.sample(range(self.num_clients), self.num_clients)  # the honest clients, of which the program has all
        for client in range(self.num_clients):
            samples: list[int] = []
            for label in self.skew * (client % blocks) + np.arange(self.skew):
                places = np.flatnonzero(pool.labels == label)
                size, turn = len(places) // sharers, client // blocks
                samples += places[size * turn : size * (turn + 1)].tolist()
            shuffler.shuffle(samples)
            found.append(np.array(samples, dtype=np.int64))
        return found


# feature_shift_code, concept_shift_code: FedCollab's src/data_partition.py with `stratified` and `clusterexp_2_<decay>`
# (baowenxuan/FedCollab). Each label is shared evenly by the twenty clients; of a client's samples of a label a sixth is
# for testing, of the other five sixths clients 0 to 9 train on all, 10 to 19 on the share exp(-decay). What is left is
# used by nobody. CIFAR-10 has 6000 of each label: 250 or 34 (Table 4's 340) and 50.
#
# The draw of seed 0, by which the authors' runs were made, was verified on all twenty clients of feature shift: an
# independent program that trains on it gives the losses in their history of Local after one round up to 2e-7.


@dataclass(frozen=True)
class ShiftCode(AuthorsProgram):
    """Large and small clients with equal numbers of each label, before rotations or permutations."""

    pools: ClassVar[bool] = True
    fixes_test: ClassVar[bool] = True

    decay: float = at_least(0, 2.0)  # clients 10-19 train on the share exp(-decay) of what clients 0-9 do

    def drawn(self, pool: Pool, seed: int) -> Assignment:
        require_clients(CLIENTS, len(pool))
        program = np.random.RandomState(seed)
        dealt = [
            np.split(places, _cuts(np.full(CLIENTS, 1 / CLIENTS), len(places))[:-1])
            for places in by_label(pool.labels, pool.classes, program)
        ]
        train, test = [], []
        for client, share in enumerate(np.repeat([1.0, np.exp(-self.decay)], CLIENTS // 2)):
            samples = np.concatenate([parts[client] for parts in dealt])
            program.shuffle(samples)
            cut = [
                np.split(samples[places], _cuts(np.array([share, 1 - share, 1 / 5]) * 5 / 6, len(places)))
                for places in by_label(pool.labels[samples], pool.classes, program)
            ]
            train.append(pool.index[np.concatenate([parts[0] for parts in cut])])
            test.append(pool.index[np.concatenate([parts[2] for parts in cut])])
        return self.shifted(train, test, pool.classes)

    @abstractmethod
    def shifted(self, train: list[Ints], test: list[Ints], classes: int) -> Assignment:
        """Return the assignment of these samples with the transforms of the four types."""


def _cuts(shares: np.ndarray, samples: int) -> Ints:
    """Return where parts with these shares of `samples` end, rounded as in the program."""
    return (np.cumsum(shares) * samples + 0.49).astype(np.int64)


@dataclass(frozen=True)
class FeatureShiftCode(ShiftCode):
    """Each type's images are rotated by its own angle, counter-clockwise, and mirrored at their borders."""

    name: ClassVar[str] = "feature_shift_code"

    def shifted(self, train: list[Ints], test: list[Ints], classes: int) -> Assignment:
        angles = np.array([-25.0, 25.0, 155.0, 205.0])
        return Assignment(train=train, test=test, rotation=angles[TYPE], corners="reflect")


@dataclass(frozen=True)
class ConceptShiftCode(ShiftCode):
    """Each type's labels are permuted in its own way."""

    name: ClassVar[str] = "concept_shift_code"

    decay: float = at_least(0, 3.0)  # clients 10-19 train on the share exp(-decay) of what clients 0-9 do

    def shifted(self, train: list[Ints], test: list[Ints], classes: int) -> Assignment:
        if classes < 4:
            raise ConfigError(f"{self.label} needs at least 4 classes, this data set has {classes}")
        return Assignment(train=train, test=test, label_map=permutations(classes)[TYPE])


# groups_fedrema<s>: FedReMa's dataset/generator.py (liangh68/FedReMa), whose seed is 1. It is groups_s dealt in order:
# samples sorted by label, a run of each label to each client in turn, from the 2000th of a label on; scikit-learn's
# train_test_split cuts off a fifth for testing. The sort is not stable. Here it is NumPy's for long doubles, which has
# no fast path that differs between processors, and gives what int64 did before NumPy 1.25. Whether the authors'
# processor took such a path is not known, and nothing published tells which samples they had.


@dataclass(frozen=True)
class FedReMaGroups(AuthorsProgram):
    """Each group of clients has three dominant labels and a share of all labels."""

    name: ClassVar[str] = "groups_fedrema"
    family_field: ClassVar[str] = "s"
    pools: ClassVar[bool] = True
    fixes_test: ClassVar[bool] = True

    s: float = within(0.0, 1.0, 0.2)  # share of a client's samples that is spread over all labels
    num_clients: int = at_least(1, 20)
    size: int = at_least(10, 600)  # samples of a client, training and test together; Table 2: 100
    draw: int | None = within(0, LARGEST_SEED, 1)

    def drawn(self, pool: Pool, seed: int) -> Assignment:
        """As in the class above.

        Raises:
            ConfigError: there are not ten classes, or not enough samples of one.
        """
        if pool.classes != CLASSES:
            raise ConfigError(f"{self.label} is of {CLASSES} classes, the data set has {pool.classes}")
        program, train, test = np.random.RandomState(seed), list[Ints](), list[Ints]()
        for samples in self.clients(pool):
            cut = len(samples) - int(0.8 * len(samples))
            mixed = samples[program.permutation(len(samples))]
            test.append(pool.index[mixed[:cut]])
            train.append(pool.index[mixed[cut:]])
        return Assignment(train=train, test=test)

    def clients(self, pool: Pool) -> list[Ints]:
        """The places in the pool of each client's samples, in the program's order."""
        order, stock = np.argsort(pool.labels.astype(np.longdouble)), len(pool) // CLASSES
        taken, found = np.full(CLASSES, 2000), list[Ints]()
        spread = int(self.size * self.s)
        for client in range(self.num_clients):
            first = 2 * (client * 5 // self.num_clients)
            runs = list[Ints]()
            for labels, samples in ((range(CLASSES), spread), (range(first, first + 3), self.size - spread)):
                least = samples // len(labels)
                for label in np.array(labels) % CLASSES:
                    last = label == labels[-1] % CLASSES
                    count = samples - least * (len(labels) - 1) if last else least
                    if taken[label] + count > stock:
                        taken[label] = 0
                    start = label * stock + taken[label]
                    runs.append(order[start : start + count])
                    taken[label] += count
            found.append(np.concatenate(runs))
        given = np.concatenate(found)
        if len(np.unique(given)) < self.num_clients * self.size:
            raise ConfigError(
                f"{self.label}: {self.num_clients} clients of {self.size} samples are more than the data set has of "
                "some label; lower partition.size or partition.num_clients"
            )
        return found


# anda: the four shifts of FLUX (Fenoglio et al., NeurIPS 2025), as ANDA draws them (alfredoLimo/ANDA, the static splits
# of split_fn.py) with the arguments of FLUX's generate_datasets.py. Training and test split are each shuffled and cut
# into equal parts, one a client. Then clients differ in one distribution:
#
# | shift | what differs | level 1 to 8 |
# |---|---|---|
# | px | all images are turned and coloured in one way | 2 to 5 angles, then 2 to 5 angles times 3 colours |
# | py | a client keeps one of five drawn sets of classes, and repeats samples up to its old size | 10 to 3 classes |
# | py_x | labels of a drawn set are permuted among each other | a set of 1 to 8 |
# | px_y | images of drawn labels are turned, each label by one of four angles | 1 to 8 labels |
#
# Of a hundred classes ten times as many, in py_x twenty more; there px_y has three angles, and as many drawn labels get
# one of three colours. A colour is a channel at its largest value. FLUX's clients hold a fifth for validation, which
# scikit-learn's train_test_split cuts off with the seed 42.
#
# FLUX calls py_x label_condition_skew and px_y feature_condition_skew; today's ANDA has the two names exchanged.

SHIFTS = ("px", "py", "py_x", "px_y")
SETS, FIFTH_SEED = 5, 42
CHANNELS = (0, 2, 1)  # red, blue, green


@dataclass(frozen=True)
class Anda(PartitionSpec):
    """Equal random parts, of which one distribution is made to differ."""

    name: ClassVar[str] = "anda"
    pools: ClassVar[bool] = True
    fixes_test: ClassVar[bool] = True

    shift: str = one_of("px", *SHIFTS)  # the distribution that differs
    level: int = within(1, 8, 4)  # of heterogeneity
    num_clients: int = at_least(1, 10)
    draw: int = within(0, LARGEST_SEED, 42)  # the program's seed of partition seed 0; that of 1 is one larger

    @property
    def label(self) -> str:
        """As "anda_px4"."""
        return f"{self.name}_{self.shift}{self.level}"

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """As in the class above.

        Raises:
            ConfigError: there are neither 10 nor 100 classes, or fewer samples of a split than clients.
        """
        import torch

        if pool.classes not in (CLASSES, CLASSES**2):
            raise ConfigError(f"{self.label} is of 10 or 100 classes, the data set has {pool.classes}")
        require_clients(self.num_clients, len(pool) - pool.tested)
        require_clients(self.num_clients, pool.tested)
        seed = (self.draw + pool.seed) % (LARGEST_SEED + 1)
        program, shuffler = np.random.RandomState(seed), torch.Generator().manual_seed(seed)
        train, test = (self._parts(places, shuffler) for places in np.split(np.arange(len(pool)), [-pool.tested]))
        looks = label_map = None
        if self.shift == "px":
            looks = self._looks(pool.classes, program)
        elif self.shift == "px_y":
            looks = self._looks_of_labels(pool.classes, program)
        elif self.shift == "py_x":
            label_map = self._label_map(pool.classes, program)
        else:
            self._keep_classes(train, test, pool, program)
        mixed = [places[np.random.RandomState(FIFTH_SEED).permutation(len(places))] for places in train]
        cuts = [math.ceil(0.2 * len(places)) for places in mixed]
        return Assignment(
            train=[pool.index[places[cut:]] for places, cut in zip(mixed, cuts, strict=True)],
            val=[pool.index[places[:cut]] for places, cut in zip(mixed, cuts, strict=True)],
            test=[pool.index[places] for places in test],
            looks=looks,
            label_map=label_map,
            repeats=self.shift == "py",
        )

    def _parts(self, places: Ints, shuffler: torch.Generator) -> list[Ints]:
        """Equal parts of `places`, shuffled; the last has the rest."""
        import torch

        mixed = places[torch.randperm(len(places), generator=shuffler).numpy()]
        return np.split(mixed, len(places) // self.num_clients * np.arange(1, self.num_clients))

    def _looks(self, classes: int, program: np.random.RandomState) -> np.ndarray:
        angles, channels = 2 + (self.level - 1) % 4, CHANNELS if self.level > 4 else (-1,)
        turn, colour = np.divmod(program.randint(0, angles * len(channels), self.num_clients), len(channels))
        looks = np.stack([turn * 360 / angles, np.array(channels)[colour]], axis=1)
        return np.repeat(looks[:, np.newaxis], classes, axis=1)

    def _looks_of_labels(self, classes: int, program: np.random.RandomState) -> np.ndarray:
        angles, channels = (4, (-1,)) if classes == CLASSES else (3, CHANNELS)
        chosen = [program.choice(classes, self.level * classes // CLASSES, replace=False) for _ in range(2)]
        looks = np.tile([0.0, -1.0], (self.num_clients, classes, 1))
        for kind, values in enumerate((np.arange(angles) * 360 / angles, channels)):
            for client in range(self.num_clients):
                for label in np.sort(chosen[kind]):
                    looks[client, label, kind] = program.choice(values)
        return looks

    def _label_map(self, classes: int, program: np.random.RandomState) -> Ints:
        mixed = program.choice(classes, self.level if classes == CLASSES else 10 * self.level + 20, replace=False)
        names = np.tile(np.arange(classes), (self.num_clients, 1))
        for own in names:
            program.uniform()  # the share of samples that are renamed, which is drawn from [1, 1]
            permuted = mixed.copy()
            program.shuffle(permuted)
            own[mixed] = permuted
        return names

    def _keep_classes(self, train: list[Ints], test: list[Ints], pool: Pool, program: np.random.RandomState) -> None:
        kept = (11 - self.level) * pool.classes // CLASSES
        sets = [program.choice(pool.classes, kept, replace=False) for _ in range(SETS)]
        for client in range(self.num_clients):
            chosen = sets[program.choice(SETS)]
            for parts in (train, test):
                places = parts[client][np.isin(pool.labels[parts[client]], chosen)]
                again = program.choice(len(places), int(len(places) * (pool.classes / kept - 1)))
                parts[client] = np.concatenate([places, places[again]])
