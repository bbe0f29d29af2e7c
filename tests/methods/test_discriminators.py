"""FedCollab's discriminators against a literal federated loop of nn.Modules, and laws of the distance."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbench.core.errors import ConfigError, UnknownName
from fedbench.core.rng import numpy_rng, torch_rng
from fedbench.engine.contract import Meter
from fedbench.methods.fedcollab import discriminators, network
from fedbench.methods.fedcollab import draws as draws_of
from fedbench.methods.fedcollab.discriminators import DiscriminatorConfig, train_discriminators
from fedbench.methods.fedcollab.patience import Patience

L = 4
FAST = DiscriminatorConfig(hidden=16, rounds=150, lr=0.1)


class Literal(nn.Module):
    """The discriminator as the paper's Table 5 counts it: three linear layers, each with a bias."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        features, hidden = weights["Wx"].shape
        self.features = nn.Linear(features, hidden)
        self.labels = nn.Linear(L, hidden)
        self.out = nn.Linear(hidden, 1)
        with torch.no_grad():
            self.features.weight.copy_(weights["Wx"].T)
            self.features.bias.copy_(weights["bx"])
            self.labels.weight.copy_(weights["Wy"].T)
            self.labels.bias.copy_(weights["by"])
            self.out.weight.copy_(weights["w2"][None])
            self.out.bias.copy_(weights["b2"])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        onehot = nn.functional.one_hot(y, L).to(x.dtype) * L / (L - 1) ** 0.5
        return self.out(torch.relu(self.features(x) + 2 * self.labels(onehot)))[:, 0]


def literal_round(model: Literal, parts: tuple[Tensor, Tensor], x: Tensor, y: Tensor, lr: float) -> None:
    """Algorithm 1, lines 3-9: both clients start from the server's weights, step, and are averaged."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    ends = []
    for rows, c in zip(parts, (1.0, 0.0), strict=True):
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=lr)
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(x[rows], y[rows]), torch.full((len(rows),), c, dtype=x.dtype)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        ends.append({name: value.clone() for name, value in model.state_dict().items()})
    model.load_state_dict({name: (ends[0][name] + ends[1][name]) / 2 for name in start})


def literal_accuracy(model: Literal, parts: tuple[Tensor, Tensor], x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        ones = (model(x[parts[0]], y[parts[0]]) >= 0).double().mean()
        zeros = (model(x[parts[1]], y[parts[1]]) < 0).double().mean()
    return float(ones + zeros) / 2


def federation(sizes: list[int], d: int = 12, seed: int = 0) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Clients of the given sizes with samples of one distribution, features depending on the label."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(L, (sum(sizes),), generator=generator)
    x = torch.randn(sum(sizes), d, generator=generator) + torch.eye(L, d)[y]
    return x, y, list(torch.randperm(sum(sizes), generator=generator).split(sizes))


@pytest.mark.parametrize(
    ("d", "m", "batch", "reduced"),
    [(60, 5, 32, True), (60, 16, 8, True), (12, 9, 32, False), (12, 20, 8, False)],
)
def test_joint_step_is_two_local_steps_averaged(d: int, m: int, batch: int, reduced: bool) -> None:
    x, y, clients = federation([50, 60, 70], d)
    x = x.double()
    weights = network.initial(d, L, 10, torch_rng(0, "test"))
    embedding = network.embed(x, y, weights, 2.0)
    pairs = [(0, 1), (0, 2), (1, 2)]
    train, valid = ({k: c[part] for k, c in enumerate(clients)} for part in (slice(m), slice(m, None)))
    nets = network.Discriminators(embedding, torch.tensor(pairs), train, valid)
    assert (nets.basis is not None) == reduced
    draws = [draws_of.batches(m, batch, numpy_rng(0, "test", *p)) for p in pairs] if m > batch else []
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
        z = (
            torch.cat([nets.valid_z[k][nets.sides[k][0].tolist().index(p)] for k in (i, j)])
            if reduced
            else None
        )
        z = embedding.phi[rows] if z is None else z
        logits = nets._logits(embedding.base[rows], z[None], torch.tensor([p]))[0]
        torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
        torch.testing.assert_close(nets.w2[p], models[p].out.weight[0].detach(), atol=1e-9, rtol=0)
        assert scores[p] == pytest.approx(literal_accuracy(models[p], (valid[i], valid[j]), x, y))


@pytest.mark.parametrize("report", ["last", "best"])
def test_distances_are_the_literal_loops(report: str) -> None:
    x, y, clients = federation([14, 15, 40], d=70)
    config = dataclasses.replace(FAST, report=report, patience=3, rounds=60)
    found = train_discriminators(x, y, L, clients, config, seed=3)
    weights = network.initial(70, L, 16, torch_rng(3, "discriminator weights"))
    for (i, j), rounds in zip([(0, 1), (0, 2), (1, 2)], found.rounds_used, strict=True):
        parts = [draws_of.split(clients[k], y, 7, 3, k) for k in (i, j)]
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


@pytest.mark.parametrize("d", [12, 200])
def test_chunks_and_pair_subsets_change_nothing(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, clients = federation([30, 90, 20, 100, 60], d)
    config = dataclasses.replace(FAST, report="best", patience=2, batch=8)
    counted = Meter()
    whole = train_discriminators(x, y, L, clients, config, 1, meter=counted)
    assert len(set(whole.rounds_used)) > 1  # pairs leave the batch at different checks
    for chunk in (1, 3):
        monkeypatch.setattr(discriminators, "_chunk", lambda *_, pairs=chunk: pairs)
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


def test_discriminator_has_the_papers_size() -> None:
    """Table 5 counts 105,001 parameters: 512 features and 10 labels into 200, both with a bias, then 1."""
    weights = network.initial(512, 10, 200, torch_rng(0, "test"))
    assert sum(w.numel() for w in weights.values()) == 105_001
    assert 0.95 / 512**0.5 < float(weights["Wx"].abs().max()) <= 1 / 512**0.5


def test_patience_on_scores_by_hand() -> None:
    scores = [[0.5, 0.6, 0.7], [0.5, 0.7, 0.6], [0.5, 0.6, 0.8], [0.9, 0.6, 0.7]]
    stops = [[False] * 3, [False] * 3, [True, False, False], [False, True, False]]
    patience, free = Patience(3, 2), Patience(3, 0)
    for row, stop in zip(scores, stops, strict=True):
        assert patience.update(torch.tensor(row, dtype=torch.float64)).tolist() == stop
        assert free.update(torch.tensor(row, dtype=torch.float64)).tolist() == [False] * 3
    assert patience.best.tolist() == [0.9, 0.7, 0.8]
    patience.keep(torch.tensor([True, False, True]))
    assert patience.best.tolist() == [0.9, 0.8]


def test_rounds_that_are_checked() -> None:
    assert list(DiscriminatorConfig(rounds=35).checks()) == [35]
    assert list(DiscriminatorConfig(rounds=35, report="best").checks()) == [1, 11, 21, 31]


def test_split_keeps_label_shares() -> None:
    y = torch.tensor([5] * 2 + [6] * 4 + [7] * 4 + [8] * 4)  # a small client of the paper's label shift
    train, valid = draws_of.split(torch.arange(14), y, 7, 0, 0)
    assert y[train].bincount(minlength=9)[5:].tolist() == [1, 2, 2, 2]
    assert sorted(torch.cat([train, valid]).tolist()) == list(range(14))
    tied = torch.tensor([0, 0, 1, 1, 1, 2])  # 3 of 6: one of label 0; 1.5 and 0.5 go one up, one down
    picks = {tuple(tied[_train(tied, s)].bincount(minlength=3).tolist()) for s in range(20)}
    assert picks == {(1, 2, 0), (1, 1, 1)}


def _train(y: Tensor, seed: int) -> Tensor:
    return draws_of.split(torch.arange(len(y)), y, len(y) // 2, seed, 0)[0]


def test_batches_are_different_samples_of_either_client() -> None:
    draws = draws_of.batches(40, 8, np.random.default_rng(0))
    seen = np.stack([next(draws) for _ in range(200)])
    assert (seen[:, :8] < 40).all()
    assert (seen[:, 8:] >= 40).all()
    assert seen.max() == 79
    assert all(len(set(row)) == 16 for row in seen.tolist())
    assert np.bincount(seen.ravel(), minlength=80).min() > 15  # 40 expected of each


def test_two_sample_clients_train_and_one_sample_is_refused() -> None:
    x, y, clients = federation([2, 2, 9])
    found = train_discriminators(x, y, L, clients, FAST, 0)
    assert np.isfinite(found.matrix).all()
    with pytest.raises(ConfigError, match="client 1 has 1 training sample"):
        train_discriminators(x, y, L, [clients[0], clients[1][:1]], FAST, 0)
    with pytest.raises(ConfigError, match="two different clients"):
        train_discriminators(x, y, L, clients, FAST, 0, pairs=[(1, 1)])


def test_a_single_client_has_no_pairs() -> None:
    x, y, clients = federation([9])
    meter = Meter()
    assert train_discriminators(x, y, L, clients, FAST, 0, meter=meter).matrix.tolist() == [[0.0]]
    assert meter == Meter()


def test_an_unknown_report_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="report 'bests'; nearest: best"):
        DiscriminatorConfig(report="bests")


@pytest.mark.parametrize(("field", "value"), [("rounds", 0), ("lr", -0.1), ("patience", -1)])
def test_impossible_values_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        DiscriminatorConfig(**{field: value})  # type: ignore[arg-type]
