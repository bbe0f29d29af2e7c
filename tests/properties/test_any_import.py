"""However a class of another project comes by a helper: an edit of the helper gives another hash, and no other does."""

from __future__ import annotations

import importlib
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbench.core import source
from tests.helpers.examples import tried

FORMS = {  # how the helper is imported, and what is read of it
    "from {helper} import rate": "rate",
    "from {helper} import rate as r": "r",
    "from {helper} import *": "rate",
    "import {helper}": "{helper}.rate",
    "import {helper} as h": "h.rate",
    "import {helper} as h\ng = h": "g.rate",
    "import {helper} as h\na, b = h.rate, 1": "a",
    "import {helper} as h\nh2 = getattr(h, 'rate')": "h2",
    "import importlib\nh = importlib.import_module('{helper}')": "h.rate",
    "from .helper import rate": "rate",
    "from .helper import *": "rate",
    "from . import helper": "helper.rate",
    "import importlib\nh = importlib.import_module('.helper', __package__)": "h.rate",
}
INSIDE = {  # the statement that the import stands in
    "": "{}",
    "if": "if True:\n{}",
    "try": "try:\n{}\nexcept ImportError:\n    rate = r = h = helper = g = a = h2 = None",
    "second": "try:\n    from missing_helper import rate\nexcept ImportError:\n{}",
    "finally": "try:\n    pass\nfinally:\n{}",
    "with": "import contextlib\nwith contextlib.suppress(ImportError):\n{}",
    "for": "for _ in range(1):\n{}",
}
THROUGH = {  # what stands between the helper and the class
    "": "",
    "named": "from {pack}.real import rate",
    "starred": "from {pack}.real import *",
    "used": "import {pack}.real\nrate = {pack}.real.rate",
}


@pytest.mark.slow
@given(
    st.sampled_from(sorted(FORMS)),
    st.sampled_from(sorted(INSIDE)),
    st.sampled_from(sorted(THROUGH)),
    st.booleans(),
    st.booleans(),
)
@example("from {helper} import *", "", "starred", False, False)
@example("import {helper}", "", "", False, False)
@example("from {helper} import rate", "try", "used", True, True)
@tried(8)
def test_any_import(form: str, inside: str, through: str, initialised: bool, in_function: bool) -> None:
    if in_function and "*" in form:
        in_function = False  # Python has no such import
    hashes = [hashed(form, inside, through, initialised, in_function, value) for value in ("1", "2", "1  # one")]
    assert hashes[0] != hashes[1], "the helper was edited"
    assert hashes[0] == hashes[2], "a comment was added"


def hashed(form: str, inside: str, through: str, initialised: bool, in_function: bool, value: str) -> str:
    """The hash of a class in a package of its own that reads `rate` of a helper, which is `value`."""
    for cached in (source.file_of, source._places, source._module, source._lies_outside):
        cached.cache_clear()
    pack = "any_pack"
    words = {"pack": pack, "helper": f"{pack}.helper"}
    imported = INSIDE[inside].format(textwrap.indent(form.format(**words), "    " if inside else ""))
    use = f"return {FORMS[form].format(**words)}\n"
    head, body = ("", f"{imported}\n{use}") if in_function else (f"{imported}\n", use)
    text = f"{head}class A:\n    def f(self):\n{textwrap.indent(body, ' ' * 8)}"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / pack
        folder.mkdir()
        if initialised:
            (folder / "__init__.py").write_text("")
        (folder / ("real.py" if through else "helper.py")).write_text(f"rate = {value}\n")
        if through:
            (folder / "helper.py").write_text(THROUGH[through].format(**words) + "\n")
        (folder / "m.py").write_text(text)
        sys.path.insert(0, place)
        importlib.invalidate_caches()
        try:
            return source.digest([f"{pack}.m:A"])
        finally:
            sys.path.remove(place)
            for name in [name for name in sys.modules if name.partition(".")[0] == pack]:
                del sys.modules[name]
