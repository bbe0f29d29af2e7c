"""results/evidence: what the pages and the tables' notes say is what the stored numbers say."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from fedbench.papers import spec

ROOT = Path(__file__).parents[2]
PLANTED = " ".join(["0"] * 5 + ["1"] * 5 + ["2"] * 10)


def lines(name: str) -> list[dict[str, str]]:
    with (ROOT / "results" / "evidence" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def found(partition: str, discriminators: str) -> list[int]:
    """Of the seeds 0-4 those with the published coalitions {0-4} {5-9} {10-19}."""
    chosen = [
        line
        for line in lines("coalitions")
        if (line["partition"], line["discriminators"]) == (partition, discriminators)
    ]
    assert [int(line["seed"]) for line in chosen] in (list(range(5)), list(range(20)))
    assert all((line["coalitions"] == PLANTED) is (line["published"] == "1") for line in chosen)
    return [int(line["seed"]) for line in chosen[:5] if line["published"] == "1"]


@pytest.mark.parametrize("name", ["fedcollab_t1", "fedcollab_t2", "fedcollab_t3"])
def test_notes_say_which_draws_give_the_published_coalitions(name: str) -> None:
    (note,) = (each for each in spec.load_spec(name).findings if "finds the published" in each.text)
    assert found("label_shift", "unit, last") == [0, 1, 2, 3, 4]
    first, second, last = found("label_shift", "normalised, best")
    assert (
        "method=fedcollab finds the published coalitions for seeds 0-4, "
        f"method=fedcollab_code for {first}, {second} and {last}" in note.text
    )
    assert "on the authors' partition both do for all five" in note.text
    for reading in ("unit, last", "normalised, last", "normalised, best"):
        assert len(found("fedcollab_label_shift_seed0", reading)) == 5


def test_the_page_counts_the_draws() -> None:
    page = (ROOT / "results" / "fedcollab.md").read_text(encoding="utf-8")
    unit, normalised = (
        sum(
            int(line["published"])
            for line in lines("coalitions")
            if (line["partition"], line["discriminators"]) == ("label_shift", reading)
        )
        for reading in ("unit, last", "normalised, last")
    )
    said = f"for {unit} of 20 redrawn partitions with pixels in [0, 1], for {normalised} of 20 normalised"
    assert said in " ".join(page.split())


def test_the_comparison_with_fl_bench_is_the_mean_of_its_evaluations() -> None:
    page = (ROOT / "results" / "other_implementations.md").read_text(encoding="utf-8")
    for line in lines("fl_bench"):
        last = [float(line[f"round_{number}"]) for number in range(24, 41, 4)]
        assert float(line["mean_last_5"]) == pytest.approx(sum(last) / 5, abs=0.011)
        (row,) = re.findall(rf"^\| {line['method']} \| {line['split']} \|.*", page, re.MULTILINE)
        said = [float(number) for number in re.findall(r" (\d\d\.\d) ", row.replace("|", " "))]
        assert min(abs(number - sum(last) / 5) for number in said) < 0.051, line


def test_differences_from_other_implementations_are_those_of_the_seeds_and_are_explained() -> None:
    """Means of the seeds listed; above 1.5 points there is a reason."""
    for line in lines("other_implementations"):
        ours, theirs = ([float(each) for each in line[f"{side}_by_seed"].split()] for side in ("ours", "theirs"))
        assert len(ours) == len(theirs) == len(line["seeds"].split())
        for values, side in ((ours, "ours"), (theirs, "theirs")):
            assert float(line[side]) == pytest.approx(sum(values) / len(values), abs=0.011)
        apart = float(line["difference"])
        assert apart == pytest.approx(float(line["ours"]) - float(line["theirs"]), abs=0.011)
        assert line["explanation"] or abs(apart) <= 1.5
