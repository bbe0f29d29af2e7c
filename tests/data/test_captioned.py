"""Procedural pictures with captions: the same classes in two views, and a shift that parts them."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.core.errors import ConfigError
from fedbench.data.datasets.synthetic import Captioned, Synthetic


def likeness(source: Captioned) -> tuple[np.ndarray, np.ndarray]:
    """How alike every two classes are in pictures and in captions: correlations of their means, off the diagonal."""
    data = source.load()
    assert data.text is not None
    words = np.stack([np.bincount(data.text[data.y == c].ravel(), minlength=source.vocabulary) for c in range(12)])
    pixels = np.stack([data.x[data.y == c].mean(0).ravel() for c in range(12)])
    other = ~np.eye(12, dtype=bool)
    seen, read = (np.corrcoef(v - v.mean(0))[other] for v in (pixels, np.log1p(words.astype(float))))
    return seen, read


@pytest.mark.parametrize(("shift", "low", "high"), [(0.0, 0.5, 1.0), (1.0, -0.35, 0.35)])
def test_classes_that_look_alike_are_described_alike_until_the_views_shift(
    shift: float, low: float, high: float
) -> None:
    source = Captioned(classes=12, train=1200, test=12, difficulty=0.5, shift=shift, chatter=0.1, traits=4)
    assert low < np.corrcoef(*likeness(source))[0, 1] < high


def test_the_shift_leaves_the_pictures() -> None:
    near, far = (Captioned(train=40, test=20, shift=shift).load() for shift in (0.0, 0.5))
    assert np.array_equal(near.x, far.x)
    assert not np.array_equal(near.text, far.text)  # type: ignore[arg-type]


def test_a_draw_is_a_function_of_the_settings() -> None:
    one, again, other = (Captioned(train=40, test=20, seed=seed).load() for seed in (0, 0, 1))
    assert one.content == again.content != other.content
    assert one.shape == (3, 16, 16)
    assert one.text is not None
    assert one.text.shape == (60, 2, 8)
    assert one.text.min() >= 2
    assert len(one.vocabulary) == 200


def test_other_pictures_are_as_they_were() -> None:
    """The content of `synthetic`, which shares the code of fields and noise, does not change."""
    assert Synthetic(train=40, test=20).load().content == SYNTHETIC


SYNTHETIC = "b6c3efaa23ab"


def test_no_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="vocabulary"):
        Captioned(vocabulary=2)
