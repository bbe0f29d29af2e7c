"""Every command in README and docs/*.md is run, small where it is long, and what comes out is looked at."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from fedbench.cli.program import COMMANDS, main
from fedbench.config import groups
from fedbench.core.errors import FedbenchError
from fedbench.papers import spec
from fedbench.papers.estimate import ResourceEstimate
from fedbench.papers.plan import Plan
from fedbench.papers.selection import Selection, compose_cell
from fedbench.papers.store import Provenance
from fedbench.runs.config import from_plain
from tests.helpers.tiers import tiered

ROOT = Path(__file__).parents[1]
PAGES = {
    file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
    for file in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
}
PROGRAM = r"(?:\$ )?(?:python -m fedbench|fedbench)(?: |$)"
OTHERS = r"(?:make|pip|pytest|jupyter|tensorboard|python scripts/\S+) "

NOT_RUN = {  # command, or how it begins -> why no test runs it
    "make install": "a package index, gigabytes",
    "pip install": "a package index",
    "jupyter lab": "a server that stays; the notebook is run by test_notebook",
    "tensorboard --logdir": "a server that stays",
    "make quickstart": "README's first command, which is run",
    "make test": "these tests",
    "make lint": "a part of make test",
    "make fuzz": "an hour; the properties are in make test",
    "make docs": "it writes into the repository; a test holds that nothing would change",
    "make site": "it writes into the repository; tests/scripts/test_make_site.py makes the site",
    "make bench": "half an hour; tests/scripts runs its parts",
    "make gpu-check": "a GPU",
    "make gpu-floor": "a GPU; tests/scripts runs its parts",
    "make leaderboard": "hours; tests/papers/tables/test_leaderboard.py fills a tiny board",
    "fedbench leaderboard": "hours; tests/papers/tables/test_leaderboard.py fills a tiny board",
    "fedbench evidence": "hours; tests/papers/test_missing_values.py fills a toy table",
    "python scripts/board_picture.py": "it writes README's picture",
    "make figures": "half an hour; tests/papers/figures plans and draws each",
    "make reproduce-all": "every table; its cells are built below",
    "make tables": "it writes into the repository; its redraw is run",
    "make report": "it writes into the repository; tests/papers/report makes the page",
    "make check-method": "tests/testing runs the suite on README's method",
    "python scripts/rival_": "environments with other frameworks",
    "python scripts/same_numbers.py": "minutes; tests/scripts runs its parts",
    "fedbench prepare mnist cifar10": "a network",
    "fedbench check-method fedexp": "pip install; tests/config/test_outside.py has a package",
    "fedbench reproduce table=fedcollab_t3 launcher=": "machines, or tests/properties/test_any_fault.py",
    "fedbench new": "it writes into the repository; tests/cli/test_new.py runs each kind in a copy",
    "fedbench -sc install=fish": "a shell that reads it; tests/cli/test_listing.py completes",
}
SHORT = ["protocol.rounds=2", "protocol.eval_every=2", "protocol.local.epochs=1", "progress=none"]
SHORT += ["hardware=cpu", "protocol.local.iterations=null"]
ALONE = ("protocol.rounds", "protocol.eval_every", "protocol.local.epochs", "hardware", "dataset.mean", "dataset.std")
FILLED = {  # placeholders, by command
    "reproduce table=NAME --dry-run": "reproduce table=fedcollab_t3 --dry-run",
    "tta RUN... --baseline RUN": "tta runs/digits/dir0.1/fedavg/RUN --baseline runs/digits/dir0.1/local/RUN",
    "GROUP=OPTION ...": "method=fedavg",
    "prepare fashion_mnist": "prepare digits",  # which need no download
}
SAYS = {  # how a command that trains nothing begins -> what it prints, or a file that it writes
    "list datasets": "synthetic",
    "list groups": "one global model",
    "list methods": "fedcollab",
    "list partitions": "pathological",
    "list protocols": "fedsac_cub",
    "list scored": "received",
    "prepare": "digits",
    "--help": "method",
    "check-method --help": "METHOD",
    "plot": "plots/",
    "collect": "fedavg",
    "tta": "fedavg",
    "redraw": "runs",
    "report": "index.html",
    "reproduce": "cells",
    "figure": "1 figure",
}


def commands(page: str) -> list[str]:
    """Those in fences and in backticks, without what scripts/update_docs.py writes, without comments."""
    prose = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", PAGES[page], flags=re.DOTALL)
    fences = re.findall(r"^```\n(.*?)^```", prose, re.DOTALL | re.MULTILINE)
    lines = [line.partition("  #")[0].strip() for fence in fences for line in fence.splitlines() if "<TAB>" not in line]
    rest = re.sub(r"^```.*?^```", "", prose, flags=re.DOTALL | re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest)]
    found = [text for text in (*lines, *spans) if re.match(f"{PROGRAM}|{OTHERS}", text)]
    return [re.sub(PROGRAM, "fedbench ", text).strip() for text in dict.fromkeys(found)]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs, a filled table and a figure, as who has followed the pages has them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDBENCH_RUNS", raising=False)
    np.savez(tmp_path / "SPLIT.npz", train_0=np.arange(60), test_0=[60], train_1=np.arange(61, 99), test_1=[99])
    x, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "FILE.npz", x=x[:400].reshape(-1, 8, 8).astype(np.uint8), y=y[:400])
    rows = pd.DataFrame(x[:400, 2:9]).assign(LABEL=y[:400], CLIENT=[f"ward{i % 7}" for i in range(400)])
    rows.to_csv(tmp_path / "FILE.csv", index=False)
    for table in ("fedcollab_t1", "fedcollab_t3"):
        shutil.copytree(ROOT / "results/tables" / table, tmp_path / "results/tables" / table)
    (tmp_path / "results/figures/quick").mkdir(parents=True)
    shutil.copy(ROOT / "results/figures/quick/figures.zip", tmp_path / "results/figures/quick")
    return tmp_path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", tiered(PAGES, quick=["docs/datasets.md"]))
def test_every_command_of_a_page_does_what_it_says(
    page: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands(page):
        if any(command.startswith(text) for text in NOT_RUN):
            continue
        if command.startswith("pytest "):
            assert command in EXPRESSIONS
        elif command.startswith("make "):
            assert main(table_of(command)) == 0, command
            assert re.search("cells|fedrema_t1", capsys.readouterr().out), command
        elif command != "fedbench":
            check(command.removeprefix("fedbench "), workplace, capsys)


def check(command: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run it, and look at what it leaves or prints."""
    words = shlex.split(FILLED.get(command, command))
    if words[0] not in COMMANDS and not words[0].startswith("--"):
        before = finished(workplace)
        assert main(small(words)) == 0, (command, capsys.readouterr().err)
        made = [json.loads(text) for _, text in finished(workplace) - before]
        chosen = dict(word.split("=", 1) for word in words if "=" in word)
        methods = chosen.get("method", "fedcollab").split(",")
        seeds = chosen.get("seed", "0").split(",")
        asked = {(method, seed) for method, seed in product(methods, seeds)}
        there = [json.loads(text) for _, text in finished(workplace)]
        assert {(row["method"].partition("(")[0], str(row["seed"])) for row in there} >= asked, command
        assert all(0 <= row["acc"] <= 100 for row in made), command
        return
    if words[0] in ("plot", "collect", "tta") and not any(workplace.glob("runs/digits/dir0.1/*")):
        assert main(["-m", "method=local,fedavg", "partition=dir0.1", *SHORT]) == 0
    words = [folder(word, workplace) for word in words]
    if words[0] == "reproduce":
        words += [] if "--dry-run" in words else ["--dry-run"]
        if "table=fedcollab_t3" not in words and "scale=smoke" not in words:
            words += ["scale=smoke", "substitute=synthetic", "dataset.size=28"]
    if words[0] == "figure":
        words = ["figure", "fedsac_f7", "scale=quick", "--dry-run"]
    capsys.readouterr()
    there = set(workplace.rglob("*"))
    try:
        code = main(words)
    except SystemExit as ended:  # argparse, after its help
        code = int(str(ended.code or 0))
    printed = capsys.readouterr().out
    (said,) = {text for start, text in SAYS.items() if " ".join(words).startswith(start)} or {""}
    assert said, f"what does {command} say?"
    assert code == 0, command
    written = [file for file in workplace.rglob("*") if file not in there]
    printed += " ".join(file.relative_to(workplace).as_posix() for file in written)
    printed += "".join(file.read_text() for file in written if file.name == "runs.csv")
    assert said in printed, (command, printed)


def finished(workplace: Path) -> set[tuple[Path, str]]:
    """The results that are there, with their seconds, so that one made again counts."""
    return {(file, file.read_text()) for file in workplace.rglob("result.json")}


def folder(word: str, workplace: Path) -> str:
    """The run's folder for `.../RUN`."""
    return str(next(workplace.glob(word.replace("RUN", "*")))) if word.endswith("/RUN") else word


def small(words: list[str]) -> list[str]:
    """The run or sweep on digits, of two rounds."""
    kept = [word for word in words if word.partition("=")[0] not in ALONE]
    kept = ["dataset=digits" if word in ("dataset=fashion_mnist", "dataset=cifar10") else word for word in kept]
    if any(word.startswith("experiment=") for word in kept):
        kept += ["dataset=digits", "protocol=quick", "seed=0", "method.C=0,10"]
    if "model=lenet5_bn" in kept and "dataset=digits" in kept:
        kept = ["dataset=synthetic" if word == "dataset=digits" else word for word in kept] + ["dataset.size=28"]
    if any(word.startswith("record=") for word in kept):
        kept += ["force=true"]  # the workplace has that run without
    if any("optuna" in word for word in kept):
        kept += ["hydra.sweeper.trials=2"]
    return [*kept, *SHORT]


def table_of(command: str) -> list[str]:
    """The table that `make reproduce-TABLE` fills, as a plan; make itself says which command that is."""
    make, target, *words = shlex.split(command)
    assert re.fullmatch("(reproduce|figure)-[a-z0-9-]+|help", target), f"no test runs {command}"
    shown = printed([make, "-n", target, *words, f"PYTHON={sys.executable}"])
    if target == "help":
        return ["list", "tables"]
    (line,) = (line for line in shown.splitlines() if "-m fedbench" in line)
    own = shlex.split(line.partition("-m fedbench ")[2])
    if own[0] == "figure":
        return ["list", "tables"]
    assert own[1] in {f"table={name}" for name in groups.names("table")}
    kept = [word for word in own if not word.startswith(("substitute=", "scale="))]
    return [*kept, "scale=smoke", "--dry-run", "substitute=synthetic", "dataset.size=28"]


def printed(command: list[str]) -> str:
    """What a program says in the repository."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


EXPRESSIONS = {  # a documented call of pytest -> a name for its NAME
    "pytest tests/config/test_configs.py -k NAME": "digits",
    "pytest tests/models/test_networks.py -k NAME": "lenet5",
    "pytest tests/data/test_partitions.py -k NAME": "homo",
    "pytest tests/engine/test_kinds.py -k NAME": "fediot",
    "pytest tests/papers/tables/test_specs.py tests/config/test_stated.py -k NAME": "fedcollab_t3",
}


def test_checks_of_methods_name_tests_that_exist_and_methods_that_were_run() -> None:
    """Every line has two tests, and what it says of another implementation has a row, or a reason."""
    evidence = ROOT / "results/evidence"
    with (evidence / "other_implementations.csv").open(encoding="utf-8", newline="") as file:
        run = {line["method"] for line in csv.DictReader(file)}
    with (evidence / "checks.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) >= 16
    for line in lines:
        names, other = line["method"].split(", "), line["other_implementation"]
        assert {*names} <= {*groups.names("method")}
        for check in (line["law_test"], line["by_hand"]):
            file_name, _, name = check.partition("::")
            assert f"\ndef {name}(" in (ROOT / file_name).read_text(encoding="utf-8"), check
        assert other.startswith(("none: ", "torch.optim")) or run & {*names}, names


@pytest.mark.slow
def test_documented_expressions_of_pytest_collect_tests() -> None:
    assert {text for page in PAGES for text in commands(page) if text.startswith("pytest ")} == set(EXPRESSIONS)
    files = {command: command.partition(" -k ")[0].split()[1:] for command in EXPRESSIONS}
    options = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    collected = printed([sys.executable, "-m", "pytest", *options, *itertools.chain(*files.values())])
    for command, name in EXPRESSIONS.items():
        for file in files[command]:
            assert [line for line in collected.splitlines() if line.startswith(file) and name in line], command


# Tables on data that everybody has.


def lacking(name: str, substitute: str, *changed: str) -> dict[str, list[str]]:
    """Why cells cannot be built -> their rows; of columns that differ in their networks alone the first is tried."""
    table = spec.load_spec(name)
    chosen = Selection(name, scale="smoke", substitute=substitute, overrides=changed)
    estimate = ResourceEstimate(Plan(table, Provenance(), (), ()))
    found: dict[str, list[str]] = {}
    tried = set()
    for column in (each for each in table.columns if not each.mean):
        models = [text for text in column.overrides if text.startswith("model")]
        if (kind := repr((column.substitute, models, column.rows))) in tried:
            continue
        tried.add(kind)
        for row in table.rows:
            try:
                _, plain = compose_cell(table, column, (*row.overrides, *column.own(row.label)), chosen)
                if not row.study:
                    estimate.setup(from_plain(plain))
            except FedbenchError as error:  # noqa: PERF203
                found.setdefault(str(error), []).append(row.label)
    return found


TOO_SMALL = {  # rows that procedural images do not suit: batch normalisation in an mlp, no short batches of 40 samples
    "all_methods": {"fedbn", "finetune_norm"},
    "fedrema_t1_open": {"FedReMa (all of the code)"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", groups.names("table"))
def test_every_table_can_be_built_on_procedural_images(name: str) -> None:
    data = ["captioned"] if name == "fedsac_t2" else ["synthetic", "dataset.size=28"]
    rows = {row for rows in lacking(name, *data).values() for row in rows}
    assert rows == TOO_SMALL.get(name, set())


@pytest.mark.slow
def test_what_digits_leave_out() -> None:
    ((reason, rows),) = lacking("fedrema_t4", "digits", "model=mlp").items()
    assert "model.classifier=linear" in reason
    assert len(rows) == 4, "all"
    reasons = lacking("pfedsim_t8", "digits", "model=mlp")
    lost = {row for rows in reasons.values() for row in rows}
    assert lost == {"FedAvg", "FedProx", "FedDyn", "FedGen", "FedFomo", "Per-FedAvg", "FedBN"}, "private statistics"
    (reason,) = lacking("fedcollab_t5", "digits", "model=mlp")
    assert "model.pretrained" in reason
