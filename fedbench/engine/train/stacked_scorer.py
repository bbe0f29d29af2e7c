"""Scoring the models of a chunk as one program: right answers per class on each client's sets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap

from fedbench.core import trees
from fedbench.core.transfer import sent
from fedbench.core.trees import Tree
from fedbench.engine.train import divergence
from fedbench.engine.train.chunk import Chunk, padded
from fedbench.engine.train.stacking import Stacking
from fedbench.engine.train.trainer import Counted, Counts

EVALUATION_SAMPLES = 8192  # samples a forward pass, over all clients of the chunk


class StackedScorer(Stacking):
    """The part of a trainer that scores clients' models as rows of one program."""

    @torch.no_grad()
    def count(self, chunk: Chunk, models: Tree, score: Sequence[str]) -> Counts:
        """(correct, total) per class of every client's model on each set, float64 [C, K]."""
        counts: Counts = {}
        for name in score:
            if name == "global" and all(trees.is_shared(leaf) for leaf in models.values()):
                model = {k: leaf[:1] for k, leaf in models.items()}
                correct, total = self._count_on([torch.cat(self.setup.scored.parts)], model)
                classes = torch.stack([self.setup.scored.classes(client) for client in chunk.ids])
                classes = sent(classes, correct.device)
                # Not a product: what is left out may be nan.
                counts[name] = (correct.masked_fill(~classes, 0.0), total.masked_fill(~classes, 0.0))
            else:
                counts[name] = self._count_on([self.setup.scored.indices(name, i) for i in chunk.ids], models)
        return counts

    def _count_on(self, samples: Sequence[Tensor], models: Tree) -> Counted:
        """Counts of `models` [C, ...], each on the samples of its own list of indices."""
        task, federation, method = self.setup.task, self.setup.federation, self.setup.method
        indices, mask = padded(samples)
        shape = (len(samples), task.classes)
        correct, total = (torch.zeros(shape, dtype=torch.float64, device=federation.device) for _ in range(2))
        if not indices.numel():
            return correct, total
        width = max(1, EVALUATION_SAMPLES // len(samples))
        for block, real in zip(indices.split(width, 1), mask.split(width, 1), strict=True):
            x, y = federation.gather(block)
            scores = vmap(lambda model, x: method.predict(model, x, task))(models, x)
            hits = scores.argmax(-1) == y
            onehot = torch.nn.functional.one_hot(y, task.classes).bool() & real.unsqueeze(-1)
            correct += (onehot & hits.unsqueeze(-1)).sum(1)
            total += divergence.samples(scores).unsqueeze(-1).masked_fill(~onehot, 0.0).sum(1)
        return correct, total
