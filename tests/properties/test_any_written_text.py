"""Whatever stands in a text file that people edit: what it says, or one line of ours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbench.config import groups
from fedbench.core.errors import Damaged
from fedbench.papers import published
from tests.helpers.any_damage import Damage, damages, holding, read_or_refused
from tests.helpers.examples import line_of, tried

PRINTED = published.FILE.read_bytes()[:2000].rsplit(b"\n", 1)[0] + b"\n"


@given(damages())
@tried(4)
def test_any_published_values(damage: Damage) -> None:
    with holding(damage(PRINTED), "published.csv") as path:
        for value in read_or_refused(path, published.read_published, Damaged) or ():
            assert np.isfinite(value.mean)
            assert value.std is None or value.std >= 0
            assert value.text


YAML = b"name: toy # a comment\nmu: 0.1\nprivate: ['@head', conv.*]\nbase: &b {name: fedavg}\nother: *b\n"


@pytest.mark.slow
@given(st.one_of(damages().map(lambda damage: damage(YAML)), st.text(max_size=40).map(str.encode)))
@example(b"0")
@example(b"\xef\xbb\xbfname: x")
@example(b"a: ${a}\nb: [1, 2")
@example(b"? [a]\n: 1\n")
@example(b"a: 2024-13-45")
@example(b"- 0b\n- 0x\n- 1:99\n- !!int x\n- !!python/object:os.system {}")
@tried(10)
def test_any_yaml(content: bytes) -> None:
    with holding(content, "toy.yaml") as path:
        try:
            groups.load_yaml(path)
        except Exception as error:
            line_of(error)
