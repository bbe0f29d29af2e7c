"""What other packages bring by entry points: packages made by hand, and the example, installed as a user does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench import testing
from fedbench.cli.program import main
from fedbench.config import compose, fields, groups, sources
from fedbench.config.messages import one_line
from fedbench.core import source, trees
from fedbench.core.errors import FedbenchError
from fedbench.methods import METHODS
from fedbench.methods.fedavg import FedAvg
from fedbench.runs import execution, fingerprint
from fedbench.runs.config import resolve
from tests.helpers import codes
from tests.helpers.runs import config
from tests.helpers.tiers import sampled
from tests.methods.quadratics import CURVED, minima, quadratic
from tests.methods.toys import FOUR, ONE_STEP, close, federation, final, initial, normalised, run, simulate

EXAMPLE = Path(__file__).parents[2] / "examples" / "fedexp"
OWN = """from dataclasses import dataclass
from fedbench.{} import {} as Base

@dataclass(frozen=True)
class Own(Base):
"""
MINE = {  # group -> where what it extends is, and its body
    "dataset": ("data.datasets.small_images", "Digits", "    name = 'mine'\n"),
    "partition": ("data.partitions.label", "Dirichlet", "    name = 'mine'\n"),
    "model": ("models.small", "MLP", "    label = 'mine'\n"),
    "method": ("methods.fedavg", "FedAvg", "    twice: float = 2.0\n"),
}


def forget() -> None:
    """Look for packages again, and read their code again."""
    for cached in (fields.outside, fields._installed, groups.conf_dirs_of_others):
        cached.cache_clear()
    for cached in (source.file_of, source._places, source._module, source._lies_outside, fingerprint._covered):
        cached.cache_clear()
    codes.forget()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fedbench_fedexp", "one", "two")]:
        del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages are installed in."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    forget()
    yield tmp_path / "site"
    monkeypatch.undo()
    forget()


def installed(site: Path, package: str, points: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Install `package` as dist-PACKAGE: `points` by "group/name", files by their names in it."""
    for name, text in {"__init__.py": "", **files}.items():
        file = site / package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    info = site / f"dist_{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{package}\nVersion: 1.0\n")
    lines = (f"[fedbench.{key.partition('/')[0]}s]\n{key.partition('/')[2]} = {at}\n" for key, at in points.items())
    (info / "entry_points.txt").write_text("".join(lines))
    forget()


def errors(*overrides: str) -> str:
    """The line that a run with `overrides` is refused by."""
    with pytest.raises(Exception) as found:  # noqa: PT011 - what Hydra raises is no FedbenchError
        resolve(compose.compose(overrides))
    line = one_line(found.value)
    assert line is not None
    assert "\n" not in line
    return line


@pytest.mark.slow
def test_data_sets_partitions_models_and_methods_of_another_package(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{group}.py": OWN.format(module, name) + body for group, (module, name, body) in MINE.items()}
    yamls = {f"conf/{group}/mine.yaml": f"# Of mine: a {group}.\nname: mine\n" for group in MINE}
    yamls["conf/method/mine.yaml"] += "twice: 2.0\n"
    points = {f"{group}/mine": f"one.{group}:Own" for group in MINE}
    installed(site, "one", points, {**files, **yamls, "conf/protocol/mine.yaml": "# Of mine.\nname: mine\nrounds: 3\n"})
    given = resolve(
        compose.compose(["dataset=mine", "partition=mine0.3", "model=mine", "method=mine", "protocol=mine"])
    )
    assert [type(getattr(given, group)).__module__ for group in MINE] == [f"one.{group}" for group in MINE]
    assert getattr(given.partition, "alpha") == 0.3  # noqa: B009 - a field of the class made above
    assert given.protocol.rounds == 3
    assert resolve(compose.compose(["method=fedcollab", "method/base=mine"])).labels["method"] == "fedcollab(mine)"
    for group in MINE:
        assert main(["list", f"{group}s", "--markdown"]) == 0
        told = capsys.readouterr()
        assert "| mine |" in told.out
        assert not told.err
    assert "one/model.py" in main_output(capsys, "list", "models", "--markdown")
    assert ", mine, " in sources._choices().partition("partition: ")[2].splitlines()[0]
    assert "method.twice with method=mine" in errors("twice=3")


def main_output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_package_that_does_not_import_is_named_and_stops_nothing_else(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yaml = {"conf/method/broken.yaml": "# Broken.\nname: broken\n"}
    installed(site, "one", {"method/broken": "one.method:Own"}, {"method.py": "import no_such_module\n", **yaml})
    line = "method 'broken' of dist-one: one.method:Own does not import: ModuleNotFoundError: No module named"
    assert line in errors("method=broken")
    assert resolve(compose.compose(["method=fedavg"])).labels["method"] == "fedavg"
    assert "method.mu with method=" in errors("mu=1")
    assert main(["list", "methods", "--markdown"]) == 0
    told = capsys.readouterr()
    assert "| fedavg |" in told.out
    assert "broken" not in told.out
    assert told.err.startswith(f"left out: {line}")
    assert len(told.err.splitlines()) == 1


def test_a_package_that_ends_the_program_on_import_is_named(site: Path) -> None:
    installed(site, "one", {"method/exits": "one.method:Own"}, {"method.py": "raise SystemExit(3)\n"})
    with pytest.raises(FedbenchError, match=r"'exits' of dist-one: one\.method:Own does not import: SystemExit: 3"):
        METHODS.get("exits")


def test_a_package_without_its_module_or_with_another_thing_is_named(site: Path) -> None:
    installed(site, "one", {"method/gone": "two.gone:Own", "method/text": "one:TEXT"}, {"__init__.py": "TEXT = 'x'\n"})
    with pytest.raises(FedbenchError, match=r"method 'gone' of dist-one: two\.gone:Own does not import"):
        METHODS.get("gone")
    with pytest.raises(FedbenchError, match="method 'text' of dist-one: one:TEXT is not the class of a method"):
        METHODS.get("text")


@pytest.mark.parametrize("first", sampled(["", "one"], every=2))
def test_a_name_that_is_taken_twice_is_refused_with_both_owners(
    site: Path, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "mine" if first else "ditto"
    own = {"method.py": OWN.format("methods.fedavg", "FedAvg") + "    pass\n"}
    for package in filter(None, (first, "two")):
        installed(site, package, {f"method/{name}": f"{package}.method:Own"}, own)
    owners = "(dist-one and dist-two|dist-two and dist-one)" if first else "fedbench and dist-two"
    with pytest.raises(FedbenchError, match=f"method '{name}' is in both {owners}: uninstall one, or rename it there"):
        METHODS.get(name)
    assert {"fedavg", name} <= {*METHODS}
    assert main(["list", "methods"]) == 0
    assert "fedprox" in (told := capsys.readouterr()).out
    assert told.err.startswith("left out: ")
    assert METHODS.get("fedprox").__name__ == "FedProx"


@pytest.mark.parametrize("taken", ["ditto", "dir"])
def test_a_file_of_a_taken_name_is_refused_with_both_owners(site: Path, taken: str) -> None:
    group = "partition" if taken == "dir" else "method"
    installed(site, "one", {"model/any": "one:Any"}, {f"conf/{group}/{taken}.yaml": f"# Mine.\nname: {taken}\n"})
    line = f"{group} '{taken}' is in both dist-one and fedbench: uninstall one, or rename it there"
    assert errors(f"{group}={taken}{'0.3' if taken == 'dir' else ''}") == line
    assert resolve(compose.compose(["method=apfl", "partition=homo"])).labels["method"] == "apfl"


@pytest.mark.slow
def test_a_file_without_its_class_and_a_class_without_its_file(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"method.py": OWN.format("methods.fedavg", "FedAvg") + "    pass\n"}
    files = {"conf/method/lost.yaml": "# Lost.\nname: lost\n", "conf/method/mine.yaml": "# Mine.\nname: mine\n"}
    installed(site, "one", {"method/mine": "one.method:Own", "method/bare": "one.method:Own"}, {**own, **files})
    bare = "method 'bare' of dist-one has a class and no YAML: its package needs one/conf/method/bare.yaml"
    assert errors("method=bare") == bare
    assert errors("method=lost").endswith("or in another package an entry point in fedbench.methods")
    assert main(["list", "presets", "--markdown"]) == 0
    told = capsys.readouterr()
    assert "| mine |" in told.out
    lost = f"{site}/one/conf/method/lost.yaml has no class: its package needs the entry point lost in fedbench.methods"
    assert told.err.splitlines() == [f"left out: {bare}", f"left out: {lost}"]


# ---- the example


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed by pip into a folder of its own."""
    copy, target = tmp_path_factory.mktemp("source") / "fedexp", tmp_path_factory.mktemp("target")
    shutil.copytree(EXAMPLE, copy)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(target), str(copy)]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture
def fedexp(site: Path, wheel: Path) -> type[FedAvg]:
    """Its class."""
    shutil.copytree(wheel, site)
    forget()
    found = METHODS.get("fedexp")
    assert issubclass(found, FedAvg)
    return found


@pytest.mark.slow
def test_the_example_is_listed_run_and_keeps_every_promise(
    fedexp: type[FedAvg], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = (
        line for line in main_output(capsys, "list", "methods", "--markdown").splitlines() if "| fedexp, " in line
    )
    group, names, _, paper = (cell.strip() for cell in row.strip("| ").split(" | ")[:4])
    assert (group, names, paper) == ("one global model", "fedexp, fedexp_code", "Jhunjhunwala et al., ICLR 2023")
    assert "| as fedexp, but per_client=true |" in main_output(capsys, "list", "presets", "--markdown")
    small = ["protocol.rounds=1", "dataset.limit=300", f"runs_dir={tmp_path}/runs", "progress=none", "hardware=cpu"]
    assert "fedexp_code" in main_output(capsys, "-m", "method=fedavg,fedexp,fedexp_code", *small)
    testing.check_method("fedexp")
    testing.check_method("fedexp_code", testing.ESSENTIAL)


@pytest.mark.slow
def test_the_code_of_a_result_goes_into_the_package_s_own_modules(
    fedexp: type[FedAvg], site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "INSTALLED", {*source.INSTALLED, site.resolve()})
    given = config(tmp_path / "runs", "method=fedexp", "protocol.rounds=1")
    made = execution.execute(given).row["code"]
    assert made == fingerprint.code_of(given)
    file = site / "fedbench_fedexp" / "step.py"
    file.write_text(file.read_text().replace("(2 *", "(3 *"))
    forget()
    assert fingerprint.changed(made, fingerprint.code_of(given)) == ["method"]


@pytest.mark.slow
def test_fedexp_is_fedavg_where_epsilon_is_large(fedexp: type[FedAvg]) -> None:
    """The step is at least one; of the last two models the mean is scored."""
    plain = run(FedAvg())[1].server
    _, state = run(METHODS.build({"name": "fedexp", "epsilon": 1e9}))
    assert close(trees.part(state.server, "model"), plain)
    two = run(FedAvg(), federation(FOUR), rounds=2)[1].server
    mean = {name: (leaf + two[name]) / 2 for name, leaf in plain.items()}
    assert close(trees.part(state.server, "scored"), mean)
    assert close(final(METHODS.build({"name": "fedexp", "epsilon": 1e9}), rounds=1), final(FedAvg(), rounds=1))


@pytest.mark.parametrize("per_client", [False, True])
def test_a_step_of_fedexp_by_hand(fedexp: type[FedAvg], per_client: bool) -> None:
    """Three clients that pull apart: eta from what each moved."""
    method = METHODS.build({"name": "fedexp", "epsilon": 0.01, "per_client": per_client})
    chosen = quadratic(method, (8, 21, 13), ((0, 255), (255, 0), (0, 255)), CURVED, **ONE_STEP)
    state = simulate(chosen)
    start = initial(chosen)["head.bias"]
    moves = torch.stack([0.2 * a * (e - start) for a, e in zip(CURVED, minima(chosen), strict=True)])
    p = torch.tensor([8, 21, 13], dtype=torch.float64) / 42
    mean = p @ moves
    eta = float((p @ moves.square().sum(1)) / (2 * (mean.square().sum() + 0.01 * (3 if per_client else 1))))
    assert eta > 1.01
    np.testing.assert_allclose(state.server["model/head.bias"].numpy(), (start + eta * mean).numpy(), atol=1e-12)
    assert torch.equal(state.server["scored/head.bias"], state.server["model/head.bias"]), "the first has none before"


def test_fedexp_averages_statistics_and_does_not_extrapolate_them(fedexp: type[FedAvg]) -> None:
    plain, own = (
        simulate(normalised(method, rounds=1)).server for method in (FedAvg(), METHODS.build({"name": "fedexp"}))
    )
    statistics = [name for name in plain if "running" in name]
    assert statistics
    assert all(close(own[f"{part}/{name}"], plain[name]) for name in statistics for part in ("model", "scored"))
