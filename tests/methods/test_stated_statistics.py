"""Every method's file says what it does with batch normalisation, whose statistics no paper's formulas hold."""

from __future__ import annotations

import sys

import pytest

from fedbench.methods import METHODS

LEFT = {
    "fedcollab": "what the method inside does",
    "oracle": "what the method inside does",
    "per_kind": "what the method inside does",
    "local": "nothing crosses",
    "fedsac": "described in `cosine`, to which its file points",
    "fedsac_multimodal": "as FedSaC",
}


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_says_what_becomes_of_statistics(name: str) -> None:
    told = sys.modules[METHODS.get(name).__module__].__doc__ or ""
    assert ("batch normalisation" in told.lower() or "statistics" in told) is (name not in LEFT)
