"""FedReMa's server: probing classifiers, and maximum difference segmentation (Liang et al., ECAI 2024, Section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Cohort
from fedbench.models.task import Task


def classifier_stage(task: Task, selectors: tuple[str, ...]) -> str:
    """The first stage of the classifier that `selectors` name: the network from there on.

    Raises:
        ConfigError: the selected leaves are not those of the last stages.
    """
    stage = task.first_stage(selectors)
    if stage is None:
        raise ConfigError(
            f"method.classifier={list(selectors)} does not select the last stages of the network"
        )
    return stage


@dataclass(frozen=True)
class Probe:
    """How classifiers are compared."""

    temperature: float  # M
    scale: float  # probes are uniform on [0, scale)
    per_client: bool  # a new probe for each row of S
    temper_all: bool  # false: only the row's own client has the temperature, the others 1

    def similarities(self, models: Tree, stage: str, cohort: Cohort) -> Tensor:
        """S [C, C], s_kj = cos(p_k, p_j) of the probabilities p = softmax(z / M) (Eq. 5); ones on the diagonal."""
        task, count = cohort.task, len(cohort.ids)
        shape = (count if self.per_client else 1, *task.shape_before(stage))
        probes = torch.rand(shape, generator=cohort.generator) * self.scale
        probes = probes.to(next(iter(models.values())))
        logits = [task.apply(trees.row(models, j), probes, since=stage) for j in range(count)]
        z = torch.stack(logits, dim=1).to(torch.float64).expand(count, -1, -1)  # [row's probe, client, K]
        tempered = (z / self.temperature).softmax(2)
        own = tempered.diagonal(dim1=0, dim2=1).t().unsqueeze(1)  # [C, 1, K]
        others = tempered if self.temper_all else z.softmax(2)
        return functional.cosine_similarity(own, others, dim=2).fill_diagonal_(1.0)


def segment(S: Tensor, last_gap: bool, keep_below: bool) -> tuple[Tensor, Tensor]:
    """Algorithm 1 for every row of S [C, C]: (A as bool [C, C], largest gaps [C]).

    In ascending order, the largest gap is between s_m and s_m+1; kept are those above it, and, if `keep_below`, the one
    just below. Without `last_gap`, the gap to the largest is not looked at. With no gap to look at, all are kept.
    """
    values, order = S.sort(dim=1, stable=True)
    gaps = values.diff(dim=1)
    gaps = gaps if last_gap else gaps[:, :-1]
    if gaps.shape[1] == 0:
        return torch.ones_like(S, dtype=torch.bool), S.new_zeros(len(S))
    largest, place = gaps.max(dim=1)
    first = place if keep_below else place + 1
    kept = torch.arange(S.shape[1], device=S.device) >= first.unsqueeze(1)
    return torch.zeros_like(kept).scatter(1, order, kept), largest
