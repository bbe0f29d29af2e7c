"""FedCollab's runs beside the history that its authors publish, client by client, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedbench.data import authors
from fedbench.tables.by_client import Clients, compare, further, paired, shares_gaining

# "KEY seeds" [S], "KEY clients" [S, 20] and "KEY rounds" [S, R] in percent; "rounds" [R], those whose scores are kept
Arrays = Mapping[str, NDArray[np.float64]]

LABELS = {  # the first three have a published history
    "local": "Local",
    "fedavg": "FedAvg",
    "fedcollab": "FedAvg+FedCollab",
    "quantities": "Ignore quantities",
    "distances": "Ignore distances",
}
PARTITION = "partition=fedcollab_label_shift_seed0"
SAMPLES = 350  # test samples of each client
SIZES = np.repeat([0, 1], 10)  # clients 0-9 are large, 10-19 small
GROUPS = {"all": SIZES >= 0, "large": SIZES == 0, "small": SIZES == 1}
SHOWN = (5, 10, 20, 50, 100, 150, 200)  # the nearest ones that are kept
HEAD = """\
# FedCollab client by client, on its authors' partition

Label shift on Fashion-MNIST, on the partition that the authors publish. Published is their one run of each method, ours
are {seeds} training seeds on the same clients and test samples (`{partition}`).

- **p, seed**: that the published run is one more seed of ours, the spread pooled over the ten large or the ten small
  clients. **p, exact**: Fisher's exact test of the shares of 350 test samples, cautious as both sides see the same
  samples. Both adjusted by Holm over the 20 clients. Below 0.05 they are bold.
- **one more seed**: the interval that holds one further seed of ours with 95 %.

"""


def text(arrays: Arrays) -> str:
    """The whole comparison."""
    shown = [key for key in authors.METHODS if f"{key} clients" in arrays]
    seeds = sorted({len(arrays[f"{key} seeds"]) for key in shown})
    head = HEAD.format(partition=PARTITION, seeds=" or ".join(map(str, seeds)))
    parts = (means(arrays, shown), every_client(arrays, shown), curves(arrays, shown), gaining(arrays))
    return head + "\n".join("".join(f"{line}\n" for line in part) for part in parts)


def means(arrays: Arrays, shown: Sequence[str]) -> Iterator[str]:
    """Means over all, the large and the small clients."""
    yield "## Means over clients"
    yield ""
    yield from rule(("method", "clients", "seeds", "ours", "published", "one more seed", "inside"))
    for key in shown:
        ours, published = arrays[f"{key} clients"], authors.clients(key)
        if len(ours) < 2:
            yield line(LABELS[key], "all", len(ours), "one seed has no interval", *[""] * 3)
            continue
        for group, chosen in GROUPS.items():
            found = further(
                ours[:, chosen].mean(1), float(published[chosen].mean()), SAMPLES * int(chosen.sum())
            )
            yield line(
                LABELS[key],
                group,
                len(ours),
                spread(found.mean, found.std),
                f"{found.published:.2f}",
                f"{found.low:.2f} to {found.high:.2f}",
                "yes" if found.inside else "**no**",
            )


def every_client(arrays: Arrays, shown: Sequence[str]) -> Iterator[str]:
    """A line a client, and what it comes to."""
    found = {key: compare(arrays[f"{key} clients"], authors.clients(key), SAMPLES, SIZES) for key in shown}
    yield "## Each client"
    yield ""
    for key, each in found.items():
        yield f"- {LABELS[key]}: {said(each)}"
    yield ""
    columns = [
        f"{LABELS[key]} {name}" for key in shown for name in ("ours", "published", "p, seed", "p, exact")
    ]
    yield from rule(("client", *columns))
    for client in range(len(SIZES)):
        cells = []
        for each in found.values():
            cells += [spread(each.mean[client], each.std[client]), f"{each.published[client]:.2f}"]
            cells += [small(each.of_seeds[client]), small(each.of_samples[client])]
        yield line(client, *cells)


def said(each: Clients) -> str:
    """How many clients differ, and by how much."""
    gap = each.mean - each.published
    over = paired(gap)
    return (
        f"mean of ours - published {over.mean:+.2f} [{over.low:.2f}, {over.high:.2f}] (paired over clients, p = "
        f"{over.p:.2f}), mean of the absolute values {np.abs(gap).mean():.2f}, largest "
        f"{np.abs(gap).max():.2f}; {int((each.of_seeds < 0.05).sum())} of {len(gap)} clients differ beside our seeds, "
        f"{int((each.of_samples < 0.05).sum())} by the exact test"
    )


def curves(arrays: Arrays, shown: Sequence[str]) -> Iterator[str]:
    """The mean accuracy after some rounds."""
    yield "## Rounds"
    yield ""
    yield "Of the rounds that `curves.csv` keeps."
    yield ""
    yield from rule(("round", *(f"{LABELS[key]} {who}" for key in shown for who in ("ours", "published"))))
    kept = arrays["rounds"].astype(int)
    for place in sorted({int(np.abs(kept - number).argmin()) for number in SHOWN}):
        cells = []
        for key in shown:
            ours = arrays[f"{key} rounds"][:, place]
            cells += [spread(ours.mean(), deviation(ours)), f"{authors.rounds(key)[kept[place] - 1]:.2f}"]
        yield line(kept[place], *cells)
    yield ""
    for key in shown:
        gap = arrays[f"{key} rounds"].mean(0) - authors.rounds(key)[kept - 1]
        early, late, largest = gap[kept <= 50].mean(), gap[kept > 50].mean(), np.abs(gap[kept > 10]).max()
        yield (
            f"- {LABELS[key]}: ours - published {early:+.2f} over rounds 1-50, {late:+.2f} over 51-200, largest "
            f"absolute value {largest:.2f} after round 10."
        )


def gaining(arrays: Arrays) -> Iterator[str]:
    """IPR against each seed's own Local and against those of all other seeds."""
    yield "## Who gains, against which Local"
    yield ""
    yield "A client that is left alone ties with the Local of its own seed, and gains by chance against another's."
    yield ""
    yield from rule(("row", "seeds", "IPR, own Local", "pairs of other seeds", "their mean IPR"))
    for key in (key for key in LABELS if key != "local" and f"{key} clients" in arrays):
        ours, alone = by_seed(arrays, key), by_seed(arrays, "local")
        same, other = shares_gaining(ours, alone)
        yield line(
            LABELS[key],
            len(ours),
            average(same),
            len(other),
            average(other),
        )


def by_seed(arrays: Arrays, key: str) -> dict[int, NDArray[np.float64]]:
    """Seed -> accuracies [20]."""
    return dict(zip(arrays[f"{key} seeds"].astype(int).tolist(), arrays[f"{key} clients"], strict=True))


def deviation(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Sample standard deviation; nan of fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def average(values: Sequence[float]) -> str:
    """The mean; nothing of no values."""
    return f"{np.mean(values):.2f}" if values else ""


def spread(mean: float, std: float = float("nan")) -> str:
    """Mean ± standard deviation, where there is one."""
    return f"{mean:.2f}" if np.isnan(std) else f"{mean:.2f} ± {std:.2f}"


def small(p: float) -> str:
    """A p value."""
    shown = "" if np.isnan(p) else "< 0.001" if p < 1e-3 else f"{p:.3f}"
    return f"**{shown}**" if p < 0.05 else shown


def rule(names: Sequence[str]) -> Iterator[str]:
    """The head of a table."""
    yield line(*names)
    yield line(*["---"] * len(names))


def line(*cells: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"
