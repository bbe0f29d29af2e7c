"""The command line: composition, virtual configs, keys and labels, errors, sweeps, speed."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from fedbench import __version__
from fedbench.cli.app import main
from fedbench.config import compose, groups, schema
from fedbench.config.messages import one_line
from fedbench.core.errors import ConfigError, DataMissing, UnknownName
from fedbench.methods.pfedme import PFedMe
from fedbench.runs.config import RunConfig, from_plain, resolve, run_key
from fedbench.sweeps import counting
from fedbench.sweeps.session import variants
from tests.helpers.runner import FakeRunner


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
    assert run.protocol.rounds == 20
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
    config.write_text(config.read_text().replace("partition: dir #", "partition: dir0.3 #"))
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
    assert resolved("method=fedprox_code").labels["method"] == "fedprox_code"
    run = resolved("method/base=fedprox_code", "partition=dir0.1")
    assert run.labels["method"] == "fedcollab(fedprox_code)"
    assert run.labels["partition"] == "dir0.1"
    assert run.labels["model"] == "net"
    assert changed(run, partition__alpha=0.5).labels["partition"] == "dir0.5"
    assert changed(run, method__base={"name": "fedavg"}).labels["method"] == "fedcollab"


# the key of a run


def changed(run: RunConfig, **changes: object) -> RunConfig:
    """`run` with other values; a double underscore stands for a dot."""
    plain: dict[str, Any] = copy.deepcopy(dict(run.plain))
    for name, value in changes.items():
        *groups, key = name.split("__")
        functools.reduce(lambda node, group: node[group], groups, plain)[key] = value
    return from_plain(plain)


def test_key_ignores_what_changes_no_result(toy: Path) -> None:
    run = resolved()
    same = [
        changed(run, hardware__device="cpu"),
        changed(run, runs_dir="/x", force=True, progress="none", save_models=True),
        changed(run, wandb__enabled=True, checkpoint__rounds=1),
        changed(run, dataset__root="/data"),
        changed(run, model={"name": "net"}),
        changed(run, model={"name": "net", "width": 200}),
    ]
    assert {run_key(other) for other in same} == {run_key(run)}


def test_key_tells_results_apart(toy: Path) -> None:
    run = resolved()
    different = [
        run,
        changed(run, seed=1),
        changed(run, dataset__classes=9),
        changed(run, partition={"name": "dir", "alpha": 0.1}),
        changed(run, partition={"name": "dir", "alpha": 0.2}),
        changed(run, model={"name": "net", "width": 10}),
        changed(run, method__restarts=99),
        changed(run, method__base={"name": "fedprox"}),
        changed(run, method__base={"name": "fedprox", "mu": 0.3}),
        changed(run, method={"name": "fedprox"}),
        changed(run, method={"name": "fedprox", "preset": "code"}),
        changed(run, protocol__local__epochs=2),
        changed(run, protocol__report="best_test"),
    ]
    assert len({run_key(other) for other in different}) == len(different)


def test_key_leaves_out_an_added_field_at_its_default(toy: Path) -> None:
    """What was run before the field came still stands; any other value of it is another run."""
    earlier = dataclasses.make_dataclass("PFedMe", ["lam", "inner_steps", "personal_lr", "beta"])
    outer = dataclasses.make_dataclass("Outer", ["base"])  # nested, as inside FedCollab
    methods = (earlier(3.0, 5, 0.01, 1.0), PFedMe(lam=3.0, restart=False), PFedMe(lam=3.0, restart=True))
    run = resolved()
    for around in (lambda method: method, outer):
        then, now, other = (run_key(dataclasses.replace(run, method=around(method))) for method in methods)
        assert then == now != other


def test_key_goes_on_counting_a_retired_field(toy: Path) -> None:
    """What was run while the field was there still stands, nested or not; another value of it was another run."""
    earlier = dataclasses.make_dataclass("Method", ["mu", "split"])
    now = schema.retired(split="even")(dataclasses.make_dataclass("Method", ["mu"]))
    outer = dataclasses.make_dataclass("Outer", ["base"])
    run = resolved()
    for around in (lambda method: method, outer):
        key, same, other = (
            run_key(dataclasses.replace(run, method=around(method)))
            for method in (earlier(0.1, "even"), now(0.1), earlier(0.1, "odd"))
        )
        assert key == same != other


def test_key_is_stable_over_the_order_of_keys(toy: Path) -> None:
    run = resolved()
    backwards = {key: run.plain[key] for key in reversed(list(run.plain))}
    backwards["protocol"] = {key: run.plain["protocol"][key] for key in reversed(list(run.plain["protocol"]))}
    assert run_key(from_plain(backwards)) == run_key(run)


# errors: one line, no traceback, not 0


BAD = [
    (["method=fedavgg"], "unknown method 'fedavgg'; nearest: fedavg"),
    (
        ["method=mine"],
        "; a new one takes conf/method/mine.yaml and, for its class, a line in fedbench/methods/__init__.py",
    ),
    (["dataset=digit"], "unknown dataset 'digit'; nearest: digits"),
    (["protocol=quik"], "unknown protocol 'quik'; nearest: quick"),
    (["partition=dirr0.1"], "unknown partition 'dirr0.1'; nearest: dir"),
    (["partition=label_shift3"], "unknown partition 'label_shift3'; nearest: label_shift"),
    (["method=fedprox_code2"], "unknown method 'fedprox_code2'; nearest: fedprox_code"),
    (["method=fedcollab", "method/base=fedprx"], "unknown method/base 'fedprx'; nearest: fedprox"),
    (["method=fedprox", "method.muu=1"], "unknown key 'method.muu'; nearest: method.mu"),
    (["protocol.round=3"], "unknown key 'protocol.round'; nearest: protocol.rounds"),
    (["protocol.optimiser.lr=3"], "unknown key 'protocol.optimiser.lr'; nearest: protocol.optimizer"),
    (["protocol.optimizer.lrr=3"], "nearest: protocol.optimizer.lr"),
    (["mu=1"], "unknown key 'mu'; nearest: method.mu with method=fedprox|fedprox_code"),
    (["method=fedprox", "mu=1"], "unknown key 'mu'; nearest: method.mu"),
    (["lr=1"], "protocol.optimizer.lr"),
    (["rounds=1"], "unknown key 'rounds'; nearest: protocol.rounds"),
    (["round=1"], "protocol.rounds"),
    (["epochs=1"], "unknown key 'epochs'; nearest: protocol.local.epochs"),
    (["alpha=5"], "unknown key 'alpha'; nearest: partition.alpha"),
    (["protocol.lr=1"], "protocol.optimizer.lr"),
    (["protocl.rounds=1"], "unknown key 'protocl.rounds'; nearest: protocol"),
    (["sed=1"], "unknown key 'sed'; nearest: seed"),
    (["methods=fedavg"], "unknown key 'methods'; nearest: method"),
    (["model.width=3"], "keys of a model need the model named first: model=net model.width=..."),
    (
        ["model=auto", "model.width=3"],
        "keys of a model need the model named first: model=net model.width=...",
    ),
    (["method=fedavg", "method.mu=3"], "unknown key 'method.mu': method=fedavg has none"),
    (["method=fedavg", "method/base=fedavg"], "the chosen method takes no 'base'"),
    (["method=fedprox", "method.mu=abc"], "method 'fedprox' (mu): Value 'abc'"),
    (["+method.extra=1"], "unknown key of method 'fedcollab' 'extra'"),
    (["+extra=1"], "unknown key of the config 'extra'"),
    (["protocol.rounds=ten"], "protocol (rounds): Value 'ten'"),
    (["protocol.rounds=0"], "protocol.rounds must be at least 1"),
    (["protocol.report=first"], "unknown protocol.report 'first'"),
    (["seed=-1"], "seed must be at least 0"),
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
def test_bad_input_has_a_one_line_message(toy: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of many classes; the message is what counts
        resolve(compose.compose(arguments))
    line = one_line(caught.value)
    assert line is not None
    assert message in line
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize(
    "arguments", [["method=fedavgg"], ["-m", "method=fedavg,fedavgg"], ["protocol.rounds=0"]]
)
def test_bad_input_exits_with_one_line_and_leaves_nothing(
    toy: Path, executed: FakeRunner, elsewhere: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
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


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedbench {__version__}\n"


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
    assert capsys.readouterr().err == "interrupted\ngo on: python -m fedbench\n"


# sweeps


def test_sweep_runs_every_combination_and_leaves_no_litter(
    toy: Path, executed: FakeRunner, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "seed=0,1", "method=fedavg", "partition=dir0.1,dir0.5"]) == 0
    ran = [(run.seed, run.labels["partition"]) for run in executed]
    assert sorted(ran) == [(s, p) for s in (0, 1) for p in ("dir0.1", "dir0.5")]
    assert list(elsewhere.iterdir()) == []
    text = capsys.readouterr().out
    assert text.count("50.50 ± 0.71") == 2


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
    assert captured.err == "error: seed=1: gone\n"
    assert "51.00 ± 1.41" in captured.out


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


def test_variants_name_what_a_sweep_varied() -> None:
    jobs = [
        {"seed": seed, "method": "fedprox", "method.mu": mu, "protocol.rounds": "5", "partition": "dir0.1"}
        for mu in ("0.1", "1")
        for seed in ("0", "1")
    ]
    assert variants(jobs) == ["mu=0.1", "mu=0.1", "mu=1", "mu=1"]
    assert variants([*jobs, {"method": "fedavg"}])[-1] == ""
    assert variants([{"seed": "0"}, {"seed": "1"}]) == ["", ""]


def test_sweep_over_a_parameter_keeps_its_values_apart(
    toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "method=fedprox", "method.mu=0.5,0.7"]) == 0
    text = capsys.readouterr().out
    assert "fedprox mu=0.5" in text
    assert "fedprox mu=0.7" in text


def test_sweep_over_methods_gives_each_its_own_keys(
    toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default method has no mu: the jobs' own methods count."""
    assert main(["-m", "method=fedprox,fedprox_code", "method.mu=0.5,0.7"]) == 0
    ran = [(run.labels["method"], vars(run.method)["mu"]) for run in executed]
    assert ran == [("fedprox", 0.5), ("fedprox", 0.7), ("fedprox_code", 0.5), ("fedprox_code", 0.7)]
    assert "fedprox_code mu=0.7" in capsys.readouterr().out


def test_sweep_over_methods_refuses_a_key_where_it_is_unknown(
    toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "method=fedavg,fedprox", "method.mu=0.5"]) == 2
    assert [(run.labels["method"], vars(run.method)["mu"]) for run in executed] == [("fedprox", 0.5)]
    error = capsys.readouterr().err
    assert error.startswith("error: method=fedavg method.mu=0.5: unknown key of method 'fedavg'")
    assert error.count("\n") == 1


def test_sweep_over_methods_reports_what_hydra_cannot_read(
    toy: Path, executed: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "method=fedavg,[", "method.mu=0.5"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot read 'method=fedavg,['")


# speed and the real entry point


def _python(*arguments: str) -> tuple[float, str]:
    """(processor seconds, output) of a Python process: unlike the clock's, they do not depend on the load."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    return used() - before, done.stdout


HEAVY = ("torch", "pandas", "sklearn", "scipy", "matplotlib", "wandb")


def test_import_is_quick_and_light() -> None:
    names = (*HEAVY, "hydra", "numpy", "omegaconf")
    code = f"import sys, fedbench; print(*[m for m in {names!r} if m in sys.modules])"
    seconds, output = _python("-c", code)
    assert output.split() == []
    assert seconds < 0.5


def test_help_is_quick_and_light_in_any_folder(elsewhere: Path) -> None:
    code = (
        "import sys; from fedbench.cli.app import main\n"
        "try: main(['--help'])\n"
        f"except SystemExit: print('HEAVY', *[m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert _python("-c", code)[1].splitlines()[-1] == "HEAVY"
    seconds, output = _python("-m", "fedbench", "--help")
    assert "python -m fedbench -m" in output
    assert seconds < 2
    assert list(elsewhere.iterdir()) == []


def test_unknown_names_in_a_registry() -> None:
    with pytest.raises(
        UnknownName, match=r"nearest: digits; a new one takes a line in fedbench/data/datasets/__init__\.py$"
    ):
        groups.registry("dataset").get("digitz")


def test_a_sweep_says_where_it_stands(toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    runner = FakeRunner()
    monkeypatch.setattr("fedbench.runs.execution.execute", runner.execute)
    assert main(["-m", "method=fedavg", "seed=0,1,2"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run ")]
    assert told[0] == "run 1 of 3"
    assert re.fullmatch(r"run 3 of 3, about .* left", told[2])
    assert main(["-m", "method=fedavg", "seed=0,1,2", "progress=none"]) == 0
    assert "run 1" not in capsys.readouterr().out


def test_time_left_counts_the_runs_that_were_made() -> None:
    count = counting.Count(first=10, jobs=4, made=[2.0, 4.0])
    assert count.line(12) == "run 3 of 4, about 6.00 s left"
    assert counting.Count(0, 2).line(0) == "run 1 of 2"
