"""The counts of the papers' lines: those of README and of verdicts.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedbench.papers import store
from fedbench.papers.report import table_view
from fedbench.papers.summary import FILE, judged, paper_counts

ROOT = Path(__file__).parents[3]
KINDS = (("equivalent",), ("above", "below"), ("inconclusive",), ("undecidable",), ("exploratory",))


@pytest.mark.slow
def test_the_committed_counts_agree_everywhere() -> None:
    """The papers' lines and README; each table's signs and verdicts.md."""
    tables = {name: store.read_table(folder) for name, folder in store.table_folders(ROOT / "results").items()}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for paper, counts in paper_counts(judged(tables)).items():
        if paper != "PFLlib":
            assert f"(results/{paper}.md) | {' | '.join(map(str, counts))} |" in readme

    said = (ROOT / "results" / FILE).read_text(encoding="utf-8")
    by_table = dict(re.findall(r"\| \[([^]]+)\]\(\S+ \| (.+) \|", said))
    for name, table in tables.items():
        counts = table_view(table, name, [], {}, [])["counts"]
        signs = [sum(counts.get(kind, 0) for kind in kinds) for kinds in KINDS]
        numbers = [int(text) for text in by_table[name].split(" | ")] if name in by_table else [0] * 12
        assert signs == [*numbers[2:6], numbers[6]], name
