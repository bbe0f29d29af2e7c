"""FedCollab's discriminators against a literal federated loop of nn.Modules, and laws of the distance."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedbench.core.errors import ConfigError
from fedbench.core.rng import numpy_rng, torch_rng
from fedbench.engine.contract import Meter
from fedbench.methods.fedcollab import distances
from fedbench.methods.fedcollab.distances import DiscriminatorConfig, train_discriminators
from tests.helpers.tiers import sampled
from tests.methods.literal import L, Literal, federation, literal_accuracy, literal_round

FAST = DiscriminatorConfig(hidden=16, rounds=150, lr=0.1)


@pytest.mark.parametrize(
    ("d", "m", "batch", "reduced"),
    sampled([(60, 5, 32, True), (60, 16, 8, True), (12, 9, 32, False), (12, 20, 8, False)], every=2),
)
def test_joint_step_is_two_local_steps_averaged(d: int, m: int, batch: int, reduced: bool) -> None:
    x, y, clients = federation([50, 60, 70], d)
    x = x.double()
    weights = distances.initial(d, L, 10, torch_rng(0, "test"))
    embedding = distances.embed(x, y, weights, 2.0)
    pairs = [(0, 1), (0, 2), (1, 2)]
    train, valid = ({k: c[part] for k, c in enumerate(clients)} for part in (slice(m), slice(m, None)))
    nets = distances.Discriminators(embedding, torch.tensor(pairs), train, valid)
    assert (nets.basis is not None) == reduced
    draws = [distances.batches(m, batch, numpy_rng(0, "test", *p)) for p in pairs] if m > batch else []
    models = [Literal(weights).double() for _ in pairs]
    for _ in range(40):
        columns = torch.from_numpy(np.stack([next(g) for g in draws])) if draws else None
        nets.step(0.5, columns)
        for p, (i, j) in enumerate(pairs):
            both = torch.cat([train[i], train[j]])
            chosen = both if columns is None else both[columns[p]]
            halves = chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]
            literal_round(models[p], halves, x, y, 0.5)
    scores = nets.balanced_accuracy()
    for p, (i, j) in enumerate(pairs):
        rows = torch.cat([valid[i], valid[j]])
        with torch.no_grad():
            expected = models[p](x[rows], y[rows])
        z = torch.cat([nets.valid_z[k][nets.sides[k][0].tolist().index(p)] for k in (i, j)]) if reduced else None
        z = embedding.phi[rows] if z is None else z
        logits = nets._logits(embedding.base[rows], z[None], torch.tensor([p]))[0]
        torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
        torch.testing.assert_close(nets.w2[p], models[p].out.weight[0].detach(), atol=1e-9, rtol=0)
        assert scores[p] == pytest.approx(literal_accuracy(models[p], (valid[i], valid[j]), x, y))


@pytest.mark.parametrize("report", sampled(["last", "best"], every=2))
def test_distances_are_the_literal_loops(report: str) -> None:
    x, y, clients = federation([14, 15, 40], d=70)
    config = dataclasses.replace(FAST, report=report, patience=3, rounds=60)
    found = train_discriminators(x, y, L, clients, config, seed=3)
    weights = distances.initial(70, L, 16, torch_rng(3, "discriminator weights"))
    for (i, j), rounds in zip([(0, 1), (0, 2), (1, 2)], found.rounds_used, strict=True):
        parts = [distances.split(clients[k], y, 7, 3, k) for k in (i, j)]
        model, scores, best_at = Literal(weights), [], 0
        for r in range(60):
            literal_round(model, (parts[0][0], parts[1][0]), x, y, config.lr)
            if report == "best" and r % 10 == 0:
                scores.append(literal_accuracy(model, (parts[0][1], parts[1][1]), x, y))
                best_at = int(np.argmax(scores))
                if len(scores) - 1 - best_at == 3:
                    break
        if report == "last":
            scores = [literal_accuracy(model, (parts[0][1], parts[1][1]), x, y)]
            assert rounds == 60
        else:
            assert rounds == 1 + 10 * (len(scores) - 1)
        assert found.matrix[i, j] == pytest.approx(max(0, 2 * scores[best_at] - 1))


def test_one_distribution_is_near_and_disjoint_labels_are_far() -> None:
    x, y, clients = federation([400] * 4)
    apart = [c[y[c] < 2] if k < 2 else c[y[c] >= 2] for k, c in enumerate(clients)]
    same = train_discriminators(x, y, L, clients, FAST, 0).matrix
    split = train_discriminators(x, y, L, apart, FAST, 0).matrix
    assert same.max() < 0.15
    assert split[:2, 2:].min() > 0.95
    assert max(split[0, 1], split[2, 3]) < 0.2
    for D in (same, split):
        np.testing.assert_array_equal(D, D.T)
        np.testing.assert_array_equal(np.diag(D), 0)
        assert D.min() >= 0
        assert D.max() <= 1


def test_concept_shift_shows_only_through_the_label() -> None:
    """Equal features and label shares but opposite labelling: the label's half of the network must see it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(800, 6, generator=generator)
    y = (x[:, 0] > 0).long()
    y[400:] = 1 - y[400:]
    clients = [torch.arange(400), torch.arange(400, 800)]
    config = dataclasses.replace(FAST, rounds=600, hidden=32)
    assert train_discriminators(x, y, 2, clients, config, 0).matrix[0, 1] > 0.7
    blind = dataclasses.replace(config, label_weight=0.0)
    assert train_discriminators(x, y, 2, clients, blind, 0).matrix[0, 1] < 0.2


@pytest.mark.parametrize("d", sampled([12, 200], every=2))
def test_chunks_and_pair_subsets_change_nothing(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, clients = federation([30, 90, 20, 100, 60], d)
    config = dataclasses.replace(FAST, report="best", patience=2, batch=8)
    counted = Meter()
    whole = train_discriminators(x, y, L, clients, config, 1, meter=counted)
    assert len(set(whole.rounds_used)) > 1  # pairs leave the batch at different checks
    for chunk in (1, 3):
        monkeypatch.setattr(distances, "_chunk", lambda *_, pairs=chunk: pairs)
        again = Meter()
        parts = train_discriminators(x, y, L, clients, config, 1, meter=again)
        np.testing.assert_array_equal(parts.matrix, whole.matrix)
        np.testing.assert_array_equal(parts.rounds_used, whole.rounds_used)
        assert again == counted
    newcomer = train_discriminators(x, y, L, clients, config, 1, pairs=[(4, k) for k in range(4)])
    np.testing.assert_array_equal(newcomer.matrix[4], whole.matrix[4])
    assert np.isnan(newcomer.matrix[0, 1])
    assert newcomer.matrix[0, 0] == 0


def test_same_seed_same_distances_and_another_seed_others() -> None:
    x, y, clients = federation([40, 50, 60])
    first, again, other = (train_discriminators(x, y, L, clients, FAST, s).matrix for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_traffic_by_hand() -> None:
    x, y, clients = federation([20, 20, 20], d=5)
    # (5 + 1 + 4 + 1 + 1) * 16 + 1 = 193 floats of four bytes; 3 pairs, 2 clients each, 150 rounds.
    meter = Meter()
    train_discriminators(x, y, L, clients, FAST, 0, meter=meter)
    assert meter.down == 3 * 2 * (150 + 1) * 193 * 4
    assert meter.up == 3 * 2 * (150 * 193 * 4 + 4)
    meter, config = Meter(), dataclasses.replace(FAST, report="best", patience=1)
    best = train_discriminators(x, y, L, clients, config, 0, meter=meter)
    checks = (best.rounds_used - 1) // 10 + 1
    assert meter.up == 2 * int((best.rounds_used * 193 * 4 + checks * 4).sum())
    assert meter.down == 2 * int((best.rounds_used + 1).sum()) * 193 * 4


def test_two_sample_clients_train_and_one_sample_is_refused() -> None:
    x, y, clients = federation([2, 2, 9])
    found = train_discriminators(x, y, L, clients, FAST, 0)
    assert np.isfinite(found.matrix).all()
    with pytest.raises(ConfigError, match=r"client 1 has too few training samples \(1\).*; use more"):
        train_discriminators(x, y, L, [clients[0], clients[1][:1]], FAST, 0)
    with pytest.raises(ConfigError, match="two different clients"):
        train_discriminators(x, y, L, clients, FAST, 0, pairs=[(1, 1)])


def test_a_single_client_has_no_pairs() -> None:
    x, y, clients = federation([9])
    meter = Meter()
    assert train_discriminators(x, y, L, clients, FAST, 0, meter=meter).matrix.tolist() == [[0.0]]
    assert meter == Meter()
