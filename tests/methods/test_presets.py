"""What the presets of the five papers' own methods say: their values, and in which fields a variant differs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedbench.config import compose
from fedbench.engine.method import Method
from fedbench.methods import METHODS

PAPERS: dict[str, dict[str, Any]] = {
    "fedcollab": {"C": 10.0, "quantities": True, "distances": True, "newcomers": ()},
    "fedrema": {
        "delta": 0.5,
        "ccp": True,
        "temperature": 0.5,
        "classifier": ("@classifier",),
        "align": 0.0,
        "alternate": False,
        "last_gap": True,
        "keep_below": True,
        "probe_scale": 1.0,
        "probe_per_client": False,
        "temper_all": True,
        "uniform": False,
        "shuffle": False,
    },
    "fedsac": {
        "k": 3,
        "alpha": 0.9,
        "beta": 1.4,
        "alpha_share": 0.7,
        "lam": 1.0,
        "attract": True,
        "reference": "mixed",
        "from_round": 0,
        "angles": "principal",
        "centred": False,
        "similarity": "updates",
        "snap": 0.9,
        "collaborators": 0,
    },
    "pfedsim": {"rho": 0.5, "log_of_mean": False, "self_weight": 1.0, "scored": "mixed"},
    "sosicfl": {
        "endpoints": 3,
        "simplex": ("@head",),
        "clusters": 10,
        "rho": 0.4,
        "start_round": 0,
        "positions": "lda",
        "sampling": "uniform",
    },
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedrema_noccp": ("fedrema", {"ccp": False}),
    "fedrema_a": ("fedrema", {"alternate": True}),
    "fedrema_f": ("fedrema", {"align": 1.0}),
    "fedrema_af": ("fedrema", {"alternate": True, "align": 1.0}),
    "fedsac_literal": ("fedsac", {"similarity": "parameters", "snap": None}),
    "fedsac_code": (
        "fedsac",
        {
            "lam": 0.01,
            "attract": False,
            "reference": "directions",
            "from_round": 1,
            "alpha_share": 1.0,
            "angles": "greedy",
            "centred": True,
        },
    ),
    "fedsac_similarity": ("fedsac", {"alpha": 0.0}),
    "fedsac_complementarity": ("fedsac", {"beta": 0.0}),
    "pfedsim_code": ("pfedsim", {"log_of_mean": True, "self_weight": 9.210340371976182, "scored": "own"}),
    "sosicfl_all": ("sosicfl", {"simplex": ("*",)}),
}


def built(preset: str) -> Method:
    plain: Any = OmegaConf.to_container(compose.compose([f"method={preset}"]).method, resolve=True)
    return METHODS.build(plain)


@pytest.mark.parametrize("preset", PAPERS)
def test_a_preset_is_what_its_paper_says(preset: str) -> None:
    method = built(preset)
    assert {name: getattr(method, name) for name in PAPERS[preset]} == PAPERS[preset]


@pytest.mark.parametrize("preset", VARIANTS)
def test_a_variant_differs_in_these_fields_only(preset: str) -> None:
    original, changes = VARIANTS[preset]
    assert built(preset) == dataclasses.replace(built(original), **changes)
