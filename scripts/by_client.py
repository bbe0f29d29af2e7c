"""FedCollab on its authors' partition, client by client beside the history that they publish.

    python scripts/by_client.py [RESULTS]

Reads the tables fedcollab_t1 and fedcollab_t3 below RESULTS (default: results), trains nothing, and
writes RESULTS/clients/fedcollab.md. Its t-test that a published value is one more of our S seeds, with t = (published -
mean) / (s sqrt(1 + 1/S)), pools s over the ten large or small clients as if they were independent, which those that
share a model are not; s is at least that of rounding to whole test samples. McNemar's test would need the predictions.

The share of gaining clients (IPR) is tested by client; a table's verdict treats clients as alike. In S + 1 runs, ours
and the published one, client i gains T_i times, with the variance T_i (S + 1 - T_i) / ((S + 1) S). The root of their
sum over N stands in for the binomial floor of fedbench.papers.equivalence; rule and margin are a table's. Exact: if
ours and theirs are alike, the published run is any of the S + 1, and what gains in it are N independent draws with
chances T_i / (S + 1).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pages import table
from scipy import stats

from fedbench.core.files import write_text
from fedbench.data import authors
from fedbench.metrics import TIE, fairness
from fedbench.papers import store
from fedbench.papers.comparisons import holm
from fedbench.papers.equivalence import LEVEL, Comparison, Sample, compare, seeds_needed
from fedbench.papers.published import Published, find_published
from fedbench.papers.store import Provenance

Floats = NDArray[np.float64]
Frames = Mapping[str, pd.DataFrame]  # by a key of LABELS; percent, a line for each of S >= 2 seeds
# Those of the first line have a published history.
LABELS = {"local": "Local", "fedavg": "FedAvg", "fedcollab": "FedAvg+FedCollab"}
LABELS |= {"quantities": "Ignore quantities", "distances": "Ignore distances"}
COLUMN = "Label shift"
COMMAND = "make reproduce-fedcollab-t1 columns=1 rows=1,2,3"
SAMPLES = 350  # test samples of each client
LARGE = np.arange(20) < 10
SHOWN = (5, 10, 20, 50, 100, 150, 200)  # rounds; the nearest ones that are kept
HEAD = """\
# FedCollab client by client, on its authors' partition

Label shift on Fashion-MNIST, on the partition that the authors publish. They publish one run of each method. Ours are
{seeds} training seeds on the same clients and test samples (`partition=fedcollab_label_shift_seed0`).

- **p, seed** tests whether the published run could be one more seed of ours, with a spread that is pooled over the ten
  large or the ten small clients.
- **p, exact** is Fisher's exact test of the shares of 350 test samples. It is cautious, because both sides have the
  same samples.
- Holm's method adjusts both over the 20 clients. Values below 0.05 are bold.
- **one more seed** is the 95 % prediction interval of one further seed of ours."""
GAINS = """\
Most clients gain with every seed or with none, so IPR varies less than the tables' verdicts assume. We made this test
after we had seen outcomes, so it is exploratory, and no count contains it.

- **verdict, seeds** is a test with spreads by client and the tables' margin of one client (5 points), and the number of
  seeds on both sides that would decide.
- **gaining** is the number of clients that gain: the mean over our seeds, and that of the published run. **p, exact**
  tests whether the published run could be one of ours.
- **gains** is the difference in gain over Local, ours - published, paired over clients, with its 90 % interval. Gains
  are equivalent if it lies within one point."""


def collect(results: Path) -> tuple[Frames, Frames]:
    """Return the final accuracies of clients, [S, N], and their mean after each kept round but 0, [S, R]."""
    clients, rounds = {}, {}
    for name in ("fedcollab_t1", "fedcollab_t3"):
        folder = store.folder_of_table(results, name, Provenance())
        kept, points = store.read_arrays(folder, store.CLIENTS), pd.DataFrame(store.read_rows(folder, store.CURVES))
        for key, label in LABELS.items():
            places = {seed: store.place_of(label, COLUMN, seed) for seed in range(100)}
            found = pd.DataFrame({seed: kept[place] for seed, place in places.items() if place in kept}).T
            if len(found) > 1:
                own = points[(points["row"] == label) & (points["column"] == COLUMN)].astype({"round": int})
                scores = own.pivot(index="seed", columns="round", values="acc_on_local").astype(float)
                clients[key], rounds[key] = found, scores.loc[:, 1:]
    return clients, rounds


def spread_of_another(variance: float, seeds: int, samples: int) -> float:
    """Return the standard error, in percent, of one further seed around the mean of `seeds` with this variance."""
    return max(math.sqrt(variance), 100 / samples / math.sqrt(12)) * math.sqrt(1 + 1 / seeds)


def p_values(ours: Floats, published: Floats, large: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return p [N] of the t-test and of Fisher's between seeds `ours` [S, N] and `published` [N], Holm-adjusted."""
    of_seeds, mean = np.empty(len(published)), ours.mean(0)
    for chosen in (large, ~large):
        error = spread_of_another(float(ours[:, chosen].var(0, ddof=1).mean()), len(ours), SAMPLES)
        t, degrees = np.abs(published - mean)[chosen] / error, (len(ours) - 1) * int(chosen.sum())
        of_seeds[chosen] = 2 * stats.t.sf(t, degrees)
    right = np.round(np.stack([mean, published]) * SAMPLES / 100).astype(int)  # [2, N]
    exact = [stats.fisher_exact([pair, SAMPLES - pair]).pvalue for pair in right.T]
    return np.array(holm(list(of_seeds))), np.array(holm(exact))


def interval_of_another(ours: Floats, samples: int) -> tuple[float, float]:
    """Return the 95 % prediction interval of one more seed beside `ours` [S], shares of `samples` test samples."""
    error = spread_of_another(float(ours.var(ddof=1)), len(ours), samples)
    half = float(stats.t.ppf(1 - LEVEL / 2, len(ours) - 1)) * error
    return float(ours.mean()) - half, float(ours.mean()) + half


def text(clients: Frames, rounds: Frames) -> str:
    """Return the whole page."""
    shown = {key: clients[key] for key in authors.METHODS if key in clients}
    counts = " or ".join(sorted({str(len(each)) for each in shown.values()}))
    curve, gains = curves({key: rounds[key] for key in shown}), gains_by_client(shown)
    parts = (means(shown), every_client(shown), curve, gains, gaining(clients))
    return "\n\n".join([HEAD.format(seeds=counts), *map("\n".join, parts)]) + "\n"


def means(shown: Frames) -> Iterator[str]:
    """Yield the means over all, the large and the small clients beside the interval of one more seed."""
    rows = []
    for key, group in ((key, group) for key in shown for group in ("all", "large", "small")):
        chosen = {"all": LARGE | True, "large": LARGE, "small": ~LARGE}[group]
        ours, published = shown[key].to_numpy()[:, chosen].mean(1), authors.clients(key)[chosen].mean()
        low, high = interval_of_another(ours, SAMPLES * int(chosen.sum()))
        told = f"{published:.2f}", f"{low:.2f} to {high:.2f}", "yes" if low <= published <= high else "**no**"
        rows.append((LABELS[key], group, len(ours), spread(ours), *told))
    names = ("method", "clients", "seeds", "ours", "published", "one more seed", "inside")
    yield from ("## Means over clients", "", *table(names, *rows))


def every_client(shown: Frames) -> Iterator[str]:
    """Yield a summary of each method, and a line a client."""
    yield from ("## Each client", "")
    columns, kinds = [("client", *range(len(LARGE)))], ("ours", "published", "p, seed", "p, exact")
    for key, frame in shown.items():
        ours, published = frame.to_numpy(), authors.clients(key)
        seed, exact = p_values(ours, published, LARGE)
        gap = ours.mean(0) - published
        paired = stats.ttest_1samp(gap, 0.0)  # the clients as a sample of such clients
        low, high = paired.confidence_interval(1 - LEVEL)
        yield (
            f"- {LABELS[key]}: mean of ours - published {gap.mean():+.2f} [{low:.2f}, {high:.2f}] (paired over "
            f"clients, p = {paired.pvalue:.2f}), mean of the absolute values {np.abs(gap).mean():.2f}, largest "
            f"{np.abs(gap).max():.2f}; {(seed < LEVEL).sum()} of {len(gap)} clients differ by our seeds' spread, "
            f"{(exact < LEVEL).sum()} by the exact test"
        )
        cells = map(spread, ours.T), map("{:.2f}".format, published), map(bold, seed), map(bold, exact)
        columns += [(f"{LABELS[key]} {name}", *each) for name, each in zip(kinds, cells, strict=True)]
    yield from ("", *table(*zip(*columns, strict=True)))


def curves(shown: Frames) -> Iterator[str]:
    """Yield the mean accuracy after some rounds, and how it differs early and late."""
    kept = shown["local"].columns.to_numpy()
    chosen = sorted({int(np.abs(kept - number).argmin()) for number in SHOWN})
    columns, said = [("round", *kept[chosen])], []
    for key, frame in shown.items():
        ours, published = frame.to_numpy(), authors.rounds(key)[kept - 1]
        columns.append((f"{LABELS[key]} ours", *map(spread, ours.T[chosen])))
        columns.append((f"{LABELS[key]} published", *map("{:.2f}".format, published[chosen])))
        gap = ours.mean(0) - published
        early, late, largest = gap[kept <= 50].mean(), gap[kept > 50].mean(), np.abs(gap[kept > 10]).max()
        said.append(
            f"- {LABELS[key]}: ours - published {early:+.2f} over rounds 1-50, {late:+.2f} over 51-200, largest "
            f"absolute value {largest:.2f} after round 10."
        )
    yield from ("## Rounds", "", "The rounds are those of the stored learning curves.", "")
    yield from (*table(*zip(*columns, strict=True)), "", *said)


def exact_p(times: Floats, runs: int, found: int) -> float:
    """Return p that one of `runs` runs has `found` gaining clients; `times` [N]: in how many of them each gains."""
    chances = np.ones(1)
    for share in times / runs:
        chances = np.convolve(chances, [1 - share, share])
    away = np.abs(np.arange(len(chances)) - times.sum() / runs)
    return float(chances[away >= away[found] - 1e-9].sum())


def share_test(gains: NDArray[np.bool_], one: NDArray[np.bool_], published: Published) -> tuple[Comparison, float]:
    """Return the test of IPR by client, and the seeds on both sides that would decide it.

    `gains` [S, N]: whether each client gains with each of our seeds; `one` [N]: the same in one published run.
    """
    (seeds, count), shares = gains.shape, 100 * gains.mean(1)
    floor = 100 / count * math.sqrt(np.vstack([gains, one]).var(0, ddof=1).sum())
    ours = Sample(float(shares.mean()), max(float(shares.std(ddof=1)), floor), seeds)
    theirs = Sample(published.mean, max(published.std or 0, floor), 5, 0.5 * 10.0**-published.decimals)
    return compare(ours, theirs, 100 / count), seeds_needed(ours, theirs, 100 / count, both=True)


def gains_by_client(shown: Frames) -> Iterator[str]:
    """Yield how often each client gains on Local beside the published run, and tests of gains and of IPR."""
    columns, rows = [("client", *range(len(LARGE)))], []
    for key in (key for key in shown if key != "local"):
        gap = shown[key].to_numpy() - shown["local"].to_numpy()  # [S, N], percent
        published = authors.clients(key) - authors.clients("local")
        gains, one = gap > TIE, published > TIE
        where = {"dataset": "fashion_mnist", "partition": "label_shift", "method": LABELS[key], "metric": "ipr"}
        (printed,) = filter(None, [find_published("fedcollab", "T1", where)])
        test, seeds = share_test(gains, one, printed)
        p = exact_p(np.vstack([gains, one]).sum(0), len(gains) + 1, int(one.sum()))
        paired = stats.ttest_1samp(gap.mean(0) - published, 0.0)
        intervals = [(test.low, test.high), paired.confidence_interval(0.9)]
        apart, gain = (f"{np.mean(each):+.2f} [{each[0]:.2f}, {each[1]:.2f}]" for each in intervals)
        told = spread(100 * gains.mean(1)), printed.text, apart, f"{test.outcome}, {seeds:.0f}"
        rows.append((LABELS[key], *told, f"{gains.sum(1).mean():.1f}, {one.sum()}", bold(p), gain))
        columns.append((f"{LABELS[key]}, of {len(gains)} seeds", *gains.sum(0)))
        columns.append((f"{LABELS[key]}, published", *("yes" if each else "no" for each in one)))
    yield from ("## Who gains, client by client", "", GAINS, "")
    names = ("row", "IPR", "published", "difference", "verdict, seeds", "gaining", "p, exact", "gains")
    yield from (*table(names, *rows), "", *table(*zip(*columns, strict=True)))


def gaining(clients: Frames) -> Iterator[str]:
    """Yield IPR against each seed's own Local and against those of all other seeds, so that no one Local decides."""
    rows = []
    for key in (key for key in clients if key != "local"):
        ipr: dict[bool, list[float]] = {True: [], False: []}  # whether Local has the same seed -> percent
        for (seed, ours), (other, local) in product(clients[key].iterrows(), clients["local"].iterrows()):
            ipr[seed == other].append(fairness(ours.to_numpy() / 100, local.to_numpy() / 100).ipr)
        same, rest = (f"{np.mean(each):.2f}" for each in ipr.values())
        rows.append((LABELS[key], len(clients[key]), same, len(ipr[False]), rest))
    yield from ("## Who gains, against which Local", "")
    yield "A client that trains alone ties with the Local of its own seed. It gains on another seed's Local by chance."
    names = ("row", "seeds", "IPR, own Local", "pairs of other seeds", "their mean IPR")
    yield from ("", *table(names, *rows))


def spread(values: Floats) -> str:
    """Return mean ± sample standard deviation of `values` [S]."""
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"


def bold(p: float) -> str:
    """Return a p value as text, bold below the level."""
    text = "< 0.001" if p < 1e-3 else f"{p:.3f}"
    return f"**{text}**" if p < LEVEL else text


def main(results: Path) -> int:
    """Write the page; returns the exit code."""
    clients, rounds = collect(results)
    if "local" not in clients:
        print(f"no filled table below {results}; first: {COMMAND}", file=sys.stderr)
        return 2
    page = results / "clients" / "fedcollab.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, text(clients, rounds))
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:2] or ["results"])))
