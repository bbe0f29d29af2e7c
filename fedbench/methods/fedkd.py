"""FedKD: Wu et al., Communication-Efficient Federated Learning via Knowledge Distillation, Nature Communications 2022.

Each client has a private mentor, a large network, and a copy of the small global mentee. Each learns from the other.
h, g are features and y, z logits of mentor and mentee. L, M are their cross-entropies. W is a linear map that stays on
the client. The mentor minimises L + (KL(z || y) + MSE(h, W g)) / (L + M), the mentee M + (KL(y || z) + MSE(h, W g)) /
(L + M). So they learn the more from each other, the better both predict the labels.
Clients upload the change of the mentee, and the server adds the average to it. Both are approximated: of the singular
values of a matrix only the largest stay, the fewest that hold a share T of the sum of squares. T rises from `lowest` to
`highest` over the rounds.
We read only the paper's abstract. The description follows the authors' code, run.py and model_bert.py, and HtFLlib.
With `apart` each loss changes its own network only, and W learns with the mentee. In both codes (preset fedkd_code) all
terms change both networks, and KL is averaged over classes too. h, g and W are HtFLlib's: the authors' code compares
all hidden states, without a map.
The mentee has the first network of the federation, as in HtFLlib.

Deviations:
- The average is by n_k / n. The code counts clients equally.
- A convolution is a matrix [o, c k k]. The loss of attention maps is left out.
- The code keeps one singular value more where the fewest just hold T, and none where only all of them hold it. HtFLlib
  approximates the mentee instead of its change.
- Traffic counts whole matrices. The array `numbers` of a run counts those of U, S and V.

Batch normalisation: each network has its own. The mentee's statistics are averaged; in HtFLlib they stay on the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import one_of, share
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Cohort
from fedbench.engine.method import ONE_VIEW, Method
from fedbench.methods.parts.features import divergence, eigen
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedKD(Method):
    """Private mentors, and a small global mentee whose changes are sent as low-rank matrices.

    Server: mentee/* [...]; numbers [2], sent up and down so far
    Memory: * [N, ...], the mentor; map/weight [N, d, d], W
    Message: mentee/* [...]
    Upload: update/* [...], of the mentee; numbers []
    """

    lowest: float = share(0.95)  # T before the first round; it rises evenly
    highest: float = share(0.98)  # T in the last round
    apart: bool = True  # each loss changes its own network only
    kl: str = one_of("sample", "entry")  # KL is averaged over samples, or over samples and classes

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Wu et al., Nature Communications 2022"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_VIEW, "regression": "compares probabilities of classes"}

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return a mentee on the server, mentors with the same weights, and W as torch initialises a layer."""
        mentor, mentee = task.init(generator), task.shared.init(generator)
        own = task.modalities[0]
        width = own.features(mentor, torch.zeros(1, *own.shape)).shape[1]
        memory = {**mentor, **trees.join(map={"weight": linear("map", width, width, generator)["map.weight"]})}
        return {**trees.join(mentee=mentee), "numbers": torch.zeros(2)}, trees.expand(memory, population.clients)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send the mentee."""
        return trees.expand(trees.join(mentee=trees.part(server, "mentee")), len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Add the average, approximated too, to the mentee."""
        moved, numbers = approximated(cohort.mean(trees.part(uploads, "update")), self.energy(cohort.clock))
        mentee = {name: leaf + moved[name] for name, leaf in trees.part(server, "mentee").items()}
        sent = torch.stack([uploads["numbers"].sum(), len(cohort.ids) * numbers])
        return {**trees.join(mentee=mentee), "numbers": server["numbers"] + sent}

    def energy(self, clock: Clock) -> float:
        """Return T of a round."""
        return self.lowest + (clock.round + 1) / clock.rounds * (self.highest - self.lowest)

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        return {"numbers": server["numbers"]}

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return both networks and W."""
        return {**client.message, **client.memory}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the sum of both losses."""
        task, shared, mentee = client.task, client.task.shared, trees.part(work, "mentee")
        h = task.features(work, batch.x, train=True, mask=batch.mask)
        g = shared.features(mentee, batch.x, train=True, mask=batch.mask)
        y, z, mapped = task.head(work, h), shared.head(mentee, g), g @ work["map/weight"].t()
        L, M = task.criterion(y, batch), task.criterion(z, batch)

        def held(value: Tensor) -> Tensor:
            return value.detach() if self.apart else value

        def apart(target: Tensor, logits: Tensor, a: Tensor, b: Tensor) -> Tensor:
            kl = divergence(target, logits) / (task.classes if self.kl == "entry" else 1)
            return batch.mean(kl + (a - b).square().mean(1))

        mentor_loss = L + apart(held(z), y, h, held(mapped)) / (L + held(M))
        return mentor_loss + M + apart(held(y), z, held(h), mapped) / (held(L) + M)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the change of the mentee, keep mentor and W."""
        moved = {name: leaf - client.message[f"mentee/{name}"] for name, leaf in trees.part(work, "mentee").items()}
        update, numbers = approximated(moved, self.energy(client.clock))
        kept = {name: work[name] for name in client.memory}
        return {**trees.join(update=update), "numbers": numbers}, kept

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the mentor."""
        return trees.plain(work)

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the mentee, if all clients have its network."""
        return trees.part(server, "mentee") if len(task.modalities) == 1 else None


def approximated(tree: Tree, energy: float) -> tuple[Tree, Tensor]:
    """Return the leaves with low-rank matrices, and the count of numbers to send, a scalar: those of U, S and V."""
    found, numbers = {**tree}, [torch.tensor(float(leaf.numel())) for leaf in tree.values() if leaf.dim() < 2]
    for name in sorted(name for name, leaf in tree.items() if leaf.dim() > 1):
        found[name], rank = low_rank(tree[name].flatten(1), energy)
        found[name] = found[name].view_as(tree[name])
        numbers.append(rank * (1 + sum(tree[name].flatten(1).shape)))
    return found, trees.sum_of(numbers)


def low_rank(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor]:
    """Return `matrix` [m, n] with the fewest singular values that hold the share `energy`, and their count []."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    squares, U = (leaf.flip(-1) for leaf in eigen(wide @ wide.t()))  # descending
    squares = squares.clamp(min=0)
    kept = (squares.cumsum(0) - squares < energy * squares.sum()).to(U)
    near = torch.where(wide.isfinite().all(), (U * kept) @ (U.t() @ wide), wide)
    return (near if wide is matrix else near.t()), kept.sum()
