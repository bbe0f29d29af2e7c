"""The paper's discriminator as an nn.Module, Algorithm 1 as a loop, and small clients for both."""

from __future__ import annotations

import torch
from torch import Tensor, nn

L = 4


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
