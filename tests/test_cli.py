"""The command line: composition, virtual configs, keys and labels, errors, sweeps, speed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from rich.console import Console

from fedbench import compose
from fedbench.cli.app import main
from fedbench.cli.table import build, summary
from fedbench.compose import RunConfig, resolve, run_key
from fedbench.errors import ConfigError, DataMissing, UnknownName
from tests.conftest import FakeRunner


def resolved(*overrides: str) -> RunConfig:
    return resolve(compose.compose(overrides))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty folder, so that litter shows."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDBENCH_DEBUG", raising=False)
    monkeypatch.delenv("FEDBENCH_RUNS", raising=False)
    return folder


# composition


def test_defaults_build_every_part(toy: Path) -> None:
    run = resolved()
    assert type(run.dataset).__name__ == "ToyData"
    assert type(run.model).__name__ == "ToyNet"  # model=auto takes the data set's
    assert run.protocol.rounds == 200
    assert run.protocol.optimizer.lr == 0.1
    assert run.protocol.local.batch_size == 32
    assert run.hardware.device == "auto"
    assert run.settings.runs_dir == "runs"
    assert run.settings.checkpoint.seconds == 20
    assert run.seed == 0
    assert "hydra" not in run.plain


def test_runs_dir_from_the_environment(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_RUNS", "/somewhere")
    assert resolved().settings.runs_dir == "/somewhere"


@pytest.mark.parametrize(
    ("option", "field", "value"),
    [("dir0.1", "alpha", 0.1), ("dir10", "alpha", 10), ("groups_s0.2", "alpha", 0.2), ("fold5", "folds", 5)],
)
def test_family_number_goes_into_its_field(toy: Path, option: str, field: str, value: float) -> None:
    run = resolved(f"partition={option}")
    assert getattr(run.partition, field) == value
    assert run.labels["partition"] == option


def test_family_takes_overrides_and_defaults_lists(toy: Path) -> None:
    run = resolved("partition=dir0.1", "partition.min_size=1")
    assert (run.partition.alpha, run.partition.min_size) == (0.1, 1)  # type: ignore[attr-defined]
    config = toy / "config.yaml"
    config.write_text(config.read_text().replace("partition: label_shift", "partition: dir0.3"))
    assert resolved().partition.alpha == 0.3  # type: ignore[attr-defined]


def test_impossible_family_value_is_a_config_error(toy: Path) -> None:
    with pytest.raises(ConfigError, match="alpha must be positive"):
        resolved("partition=dir0")


def test_any_method_can_be_a_base(toy: Path) -> None:
    assert resolved().method.base["name"] == "fedavg"  # type: ignore[attr-defined]
    run = resolved("method=fedcollab", "method/base=fedprox", "method.base.mu=0.7")
    assert run.method.base == {"name": "fedprox", "mu": 0.7}  # type: ignore[attr-defined]
    twice = resolved("method/base=fedcollab", "method/base/base=fedprox")
    assert twice.method.base["base"] == {"name": "fedprox", "mu": 0.1}  # type: ignore[attr-defined]


def test_labels(toy: Path) -> None:
    def method(*overrides: str) -> str:
        return resolved(*overrides).labels["method"]

    assert method() == "fedcollab"
    assert method("method=fedprox_code") == "fedprox_code"
    assert method("method/base=fedprox") == "fedcollab(fedprox)"
    assert method("method/base=fedprox_code") == "fedcollab(fedprox_code)"
    assert resolved("partition=dir0.1").labels["partition"] == "dir0.1"
    assert resolved("partition=dir", "partition.alpha=0.5").labels["partition"] == "dir0.5"
    assert resolved("model=net").labels["model"] == resolved().labels["model"] == "net"


# the key of a run


def test_key_ignores_what_changes_no_result(toy: Path) -> None:
    key = run_key(resolved())
    same = [
        ("hardware=cpu",),
        ("runs_dir=/x", "force=true", "progress=none"),
        ("wandb.enabled=true",),
        ("dataset.root=/data",),
        ("model=net",),
        ("method.restarts=100", "protocol.rounds=200"),
        ("checkpoint.rounds=1",),
    ]
    assert [run_key(resolved(*overrides)) for overrides in same] == [key] * len(same)


def test_key_tells_results_apart(toy: Path) -> None:
    different = [
        (),
        ("seed=1",),
        ("dataset.classes=9",),
        ("partition=dir0.1",),
        ("partition=dir0.2",),
        ("model=net", "model.width=10"),
        ("method.restarts=99",),
        ("method/base=fedprox",),
        ("method/base=fedprox", "method.base.mu=0.3"),
        ("protocol.local.epochs=2",),
        ("protocol=quick",),
    ]
    keys = {run_key(resolved(*overrides)) for overrides in different}
    assert len(keys) == len(different)


def test_key_is_stable_over_the_order_of_keys(toy: Path) -> None:
    run = resolved()
    backwards = {key: run.plain[key] for key in reversed(list(run.plain))}
    backwards["protocol"] = {key: run.plain["protocol"][key] for key in reversed(list(run.plain["protocol"]))}
    assert run_key(compose.from_plain(backwards)) == run_key(run)


def test_key_of_a_plain_copy_with_another_method(toy: Path) -> None:
    run = resolved("partition=dir0.1")
    altered = compose.from_plain({**run.plain, "method": {"name": "fedavg"}})
    assert run_key(altered) == run_key(resolved("partition=dir0.1", "method=fedavg"))


# errors: one line, no traceback, not 0


BAD = [
    (["method=fedavgg"], "unknown method 'fedavgg'; nearest: fedavg"),
    (["dataset=digit"], "unknown dataset 'digit'; nearest: digits"),
    (["protocol=fast"], "unknown protocol 'fast'; nearest: fedcollab_label_shift, quick"),
    (["partition=dirr0.1"], "unknown partition 'dirr0.1'; nearest: dir"),
    (["partition=label_shift3"], "unknown partition 'label_shift3'; nearest: label_shift"),
    (["method=fedcollab", "method/base=fedprx"], "unknown method/base 'fedprx'; nearest: fedprox"),
    (["method=fedprox", "method.muu=1"], "unknown key 'method.muu'; nearest: method.mu"),
    (["protocol.round=3"], "unknown key 'protocol.round'; nearest: protocol.rounds"),
    (["protocol.optimiser.lr=3"], "unknown key 'protocol.optimiser.lr'; nearest: protocol.optimizer"),
    (["protocol.optimizer.lrr=3"], "nearest: protocol.optimizer.lr"),
    (["sed=1"], "unknown key 'sed'; nearest: seed"),
    (["methods=fedavg"], "unknown key 'methods'; nearest: method"),
    (["model.width=3"], "keys of a model need the model named first: model=net"),
    (["method=fedavg", "method/base=fedavg"], "the chosen method takes no 'base'"),
    (["method=fedprox", "method.mu=abc"], "method 'fedprox' (mu): Value 'abc'"),
    (["+method.extra=1"], "unknown key of method 'fedcollab' 'extra'"),
    (["+extra=1"], "unknown key of the config 'extra'"),
    (["protocol.rounds=ten"], "protocol (rounds): Value 'ten'"),
    (["protocol.rounds=0"], "protocol.rounds must be positive"),
    (["protocol.report=first"], "unknown protocol.report 'first'"),
    (["seed=-1"], "seed must not be negative"),
    (["seed=0,1"], "add -m for a sweep"),
    (["seed=range(3)"], "add -m for a sweep"),
    (["fedavg"], "'fedavg' is not of the form GROUP=OPTION or key=value"),
    (["method=[fedavg"], "cannot read 'method=[fedavg'"),
    (["method=3"], "Config group override must be a string or a list. Got int"),
    (["~method"], "method: no option chosen"),
    (["runs_dir=${nowhere}"], "nowhere"),
    (["seed=???"], "seed"),
    (["partition=dir0"], "alpha must be positive"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_line(
    toy: Path,
    executed: FakeRunner,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert len(captured.err) < 300
    assert executed == []
    assert list(elsewhere.iterdir()) == []


def test_help(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "python -m fedbench -m method=local,fedavg seed=0,1,2" in text
    assert "method: fedavg, fedcollab, fedprox, fedprox_code\n" in text
    assert "method/base" not in text.split("Choices")[1]
    assert "$" not in text


def test_error_inside_a_run(
    toy: Path,
    executed: FakeRunner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    executed.fail(DataMissing("cifar10 is not here\nfetch it"), 0)
    assert main([]) == 2
    assert capsys.readouterr().err == "error: cifar10 is not here fetch it\n"


def test_full_disk_is_one_line_and_a_defect_is_a_traceback(
    toy: Path,
    executed: FakeRunner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    executed.fail(OSError(28, "No space left on device", "runs/x"), 0)
    assert main([]) == 2
    assert capsys.readouterr().err == "error: No space left on device: runs/x\n"
    executed.fail(ZeroDivisionError("defect"), 0)
    assert main([]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_debug_shows_the_traceback(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDBENCH_DEBUG", "1")
    assert main(["method=fedavgg"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interruption_says_how_to_resume(
    toy: Path,
    executed: FakeRunner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    executed.fail(KeyboardInterrupt(), 0)
    assert main([]) == 130
    assert "the same command resumes" in capsys.readouterr().err


# sweeps


def test_sweep_runs_every_combination_and_leaves_no_litter(
    toy: Path, executed: FakeRunner, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "seed=0,1", "method=fedavg,fedprox", "partition=dir0.1,dir0.5"]) == 0
    ran = [(run.seed, run.labels["method"], run.labels["partition"]) for run in executed]
    assert sorted(ran) == [
        (s, m, p) for s in (0, 1) for m in ("fedavg", "fedprox") for p in ("dir0.1", "dir0.5")
    ]
    assert list(elsewhere.iterdir()) == []
    text = capsys.readouterr().out
    assert text.count("50.50 ± 0.71") == 4


def test_sweep_glob_finds_the_files_only(toy: Path, executed: FakeRunner) -> None:
    assert main(["-m", "method=glob(*)"]) == 0
    assert [run.labels["method"] for run in executed] == ["fedavg", "fedcollab", "fedprox", "fedprox_code"]


def test_sweep_goes_on_after_a_failure_and_tells(
    toy: Path,
    executed: FakeRunner,
    capsys: pytest.CaptureFixture[str],
) -> None:
    executed.fail(DataMissing("gone"), 1)
    assert main(["-m", "seed=0,1,2"]) == 2
    assert [run.seed for run in executed] == [0, 2]
    captured = capsys.readouterr()
    assert captured.err == "error: gone\n"
    assert "51.00 ± 1.41" in captured.out


def test_sweep_with_one_bad_name_starts_nothing(toy: Path, executed: FakeRunner) -> None:
    assert main(["-m", "method=fedavg,fedavgg"]) == 2
    assert executed == []


def test_compose_inside_a_running_job(toy: Path, executed: FakeRunner) -> None:
    seen = []

    def before(run: RunConfig) -> None:
        outer = GlobalHydra.instance().hydra
        seen.append(resolved("method=fedavg", f"seed={run.seed}").labels["method"])
        assert GlobalHydra.instance().hydra is outer
        assert outer is not None
        assert HydraConfig.get().job.name == "fedbench"

    executed.before = before
    assert main(["-m", "seed=0,1"]) == 0
    assert seen == ["fedavg", "fedavg"]


# the table


def test_summary() -> None:
    assert summary([1.0, 2.0, 3.0]) == "2.00 ± 1.00"
    assert summary([0.5]) == "0.50"
    assert summary([None, float("nan")]) == "-"


def test_table_groups_over_seeds_and_moves_what_is_shared_to_the_title() -> None:
    rows = [
        {"dataset": "digits", "partition": p, "method": m, "seed": s, "acc": 10.0 * s, "ipr": None}
        for p in ("a", "b")
        for m in ("local", "fedavg")
        for s in (1, 2)
    ]
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(build(rows))
    text = console.export_text()
    assert text.splitlines()[0].strip() == "digits"
    assert text.count("15.00 ± 7.07") == 4
    assert "IPR" not in text
    cells = [line.split("│")[1:4] for line in text.splitlines() if "15.00" in line]
    assert [[cell.strip() for cell in line] for line in cells] == [
        [partition, method, "2"] for partition in ("a", "b") for method in ("local", "fedavg")
    ]


# speed and the real entry point


def _seconds(*arguments: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    return time.perf_counter() - start, done


def test_start_up_imports_nothing_heavy() -> None:
    code = "import sys; {}; print(*[m for m in {!r} if m in sys.modules])"
    heavy = ("torch", "pandas", "sklearn", "scipy", "matplotlib", "wandb")
    _, bare = _seconds("-c", code.format("import fedbench", (*heavy, "hydra", "numpy")))
    assert bare.stdout.split() == []
    shown = "from fedbench.cli.app import main\ntry: main(['--cfg', 'job'])\nexcept SystemExit: pass\n"
    _, config = _seconds(
        "-c", f"import sys\n{shown}\nprint('HEAVY', *[m for m in {heavy!r} if m in sys.modules])"
    )
    assert "rounds: 200" in config.stdout
    assert config.stdout.splitlines()[-1] == "HEAVY"


def test_help_is_quick_from_any_folder(elsewhere: Path) -> None:
    seconds, done = min((_seconds("-m", "fedbench", "--help") for _ in range(2)), key=lambda pair: pair[0])
    assert done.returncode == 0
    assert "python -m fedbench" in done.stdout
    assert seconds < 2
    assert list(elsewhere.iterdir()) == []


def test_unknown_names_in_a_registry() -> None:
    with pytest.raises(UnknownName, match="nearest"):
        compose.registry("dataset").get("digitz")
