"""The site's pages are made of docstrings, YAMLs, CSV files and boards, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedbench.config import groups
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedcollab.fedcollab import FedCollab
from scripts import make_site
from tests.papers.report import browsing


def test_a_link_to_no_page_becomes_text_and_others_stay() -> None:
    pages = {"docs/runs.md", "results/x.md"}
    text = (
        "[a](../fedbench/a.py) [b](runs.md#top) [c](https://c) [![p](../p.svg)](../results/x.md) [![p](p.svg)](no.md)"
    )
    assert make_site.linked("docs/y.md", text, pages) == (
        "a [b](runs.md#top) [c](https://c) [![p](../p.svg)](../results/x.md) ![p](p.svg)"
    )
    pages = {make_site.source_page("readings")}
    assert make_site.linked("results/x.md", "[r](../docs/readings.csv)", pages) == "[r](../docs/reference/readings.md)"
    assert make_site.linked("docs/reference/y.md", "[r](../readings.csv)", pages) == "[r](readings.md)"


def test_a_method_leads_to_its_page() -> None:
    text = "[ditto](../../fedbench/methods/ditto.py) [its file](../../fedbench/methods/ditto.py)"
    assert make_site.linked("docs/reference/y.md", text, set()) == "[ditto](../../methods/ditto.md) its file"


def test_a_docstring_keeps_its_ends_of_lines_its_code_and_its_signs() -> None:
    long = "x" * make_site.WRAPPED
    assert make_site.prose(f"A: w_k * 2.\n{long}\nend `a_b`\n\n    for k:") == (
        f"A: w\\_k \\* 2.\\\n{long}\nend `a_b`\n\n```text\n    for k:\n```\n"
    )
    assert make_site.prose("A:\n- b\n- c") == "A:\n- b\n- c\n", "an item needs no sign at the end of a line"


def test_options_have_their_default_domain_and_comment_and_those_that_are_varied_come_first() -> None:
    assert ("method.lam", "1.0", "≥ 0", "lambda, strength of the pull") in [*make_site.fields_of(Ditto, "method")]
    inner = {option: rest for option, *rest in make_site.fields_of(FedCollab, "method")}
    assert inner["method.discriminator.hidden"] == ["200", "≥ 1", "width of the hidden layer"]
    head, first, folded = make_site.options("ditto", Ditto)
    assert (head[0], first[0]) == ("option", "`method.lam`"), "which a board tunes"
    assert "`method.personal_epochs`" in folded


def test_a_page_says_what_is_scored_how_is_averaged_and_what_the_head_is() -> None:
    registry = groups.registry("method")
    ditto, fedrema, local = ("".join(make_site.definitions(n, registry.get(n))) for n in ("ditto", "fedrema", "local"))
    assert "the model that a client has before local training (`protocol.score=received`" in ditto
    assert "`score=own` it is `trained`: what the client trains." in ditto
    assert "average**: training samples" in ditto
    assert "**Head**: the method does not treat it apart." in ditto
    fedtgp = "".join(make_site.definitions("fedtgp", registry.get("fedtgp")))
    assert "**Head**: the last linear layer." in fedtgp, "as in its base class"
    assert "**Dirichlet's parameter**: if small, clients differ" in ditto
    assert "**Head**: every fully connected layer" in fedrema
    assert "no plain average" in local
    assert "the global model (" in "".join(make_site.definitions("fedavg", registry.get("fedavg")))


@pytest.mark.slow
def test_each_method_has_a_page_with_its_paper_law_leaves_and_rows_of_boards() -> None:
    pages = make_site.method_pages()
    assert {*pages} == {f"methods/{name}.md" for name in ("index", *groups.registry("method"))}
    ditto = pages["methods/ditto.md"]
    assert "Li et al., ICML 2021" in ditto
    assert "`Ditto(lam=0.0)` is `Local()`" in ditto
    assert "| kept by clients | `personal/* [N, ...], v_k` |" in ditto
    assert re.search(r"v1/README.md\), label skew \| ditto \| \d+ of \d+ \| 81.80 ± 1.41 ", ditto)
    assert "cosine of updates since the initial model" in pages["methods/fedsac.md"], "where text and code differ"
    fedala = pages["methods/fedala.md"]
    assert "Law: FedAvg if nothing is learned" in fedala
    assert "Rounds computed by hand: `tests/methods/test_entrywise.py::test_two_rounds_of_fedala_by_hand`" in fedala
    assert "| `fedala` | TsingZ0/PFLlib d832e76 | 91.39 | 91.40 | -0.02 |" in fedala


def test_the_sources_of_values_are_pages_with_a_table_a_paper() -> None:
    """Every line of both CSV files is a row."""
    for page, file in ((make_site.settings(), "settings"), (make_site.all_readings(), "readings")):
        rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
        tables = page.count("\n## ")
        assert tables >= 5
        assert len(rows) - tables == len(make_site.lines_of(f"docs/{file}.csv"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_site_needs_no_network_and_its_search_knows_the_methods(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("sphinx")
    assert make_site.main([str(tmp_path / "site")]) == 0
    texts = [file.read_text(encoding="utf-8") for file in (tmp_path / "site" / "methods").glob("*.html")]
    assert len(texts) == len(list(groups.registry("method"))) + 1
    assert not [text for text in texts if re.search(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//', text)]
    if browsing.CHROMIUM is None:
        return
    browser = request.getfixturevalue("browser")
    for page in browsing.opened(browser, tmp_path / "site", "search.html?q=fedala"):
        page.locator("#search-results li a", has_text=re.compile("^fedala$")).click()
        assert page.title().startswith("fedala")
    for page in browsing.opened(browser, tmp_path / "site" / "results"):
        page.locator("#board-v2 tbody th a", has_text=re.compile("^ditto$")).first.click()
        assert page.title().startswith("ditto")
        assert "Li et al., ICML 2021" in page.locator("article").inner_text()
