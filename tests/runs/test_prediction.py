"""Run.predict: the model that was scored, for every method and protocol; what has no such model is refused."""

from __future__ import annotations

import itertools
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedbench
from fedbench.config import groups
from fedbench.core.errors import ConfigError, FedbenchError, warn_once
from fedbench.engine.looped import LoopedTrainer
from fedbench.runs.config import from_plain
from fedbench.runs.run import Run
from tests.helpers.runs import interrupt_after
from tests.helpers.tiers import tiered

CLIENTS = 4
SHORT = (
    *("partition=dir0.3", f"partition.num_clients={CLIENTS}", "protocol.rounds=3", "protocol.local.epochs=1"),
    *("reference=none", "hardware=cpu", "hardware.engine=looped"),
)
DIGITS = ("dataset=digits", "dataset.limit=300", "model=mlp", "model.hidden=[16]")
NORMED = ("dataset=synthetic", "dataset.train=240", "dataset.test=60", "model=lenet5_bn")
READINGS = {  # what is scored, and of which round
    "received": (),
    "trained": ("protocol.score=trained", "protocol.cohort=3"),
    "best": ("protocol.report=best_test",),
    "best trained": ("protocol.score=trained", "protocol.report=best_test", "protocol.optimizer.state=kept"),
    "best of both": (
        *("protocol.score=both", "protocol.report=best_val", "protocol.per_client=true"),
        *("protocol.test.val_fraction=0.2", "protocol.cohort=3"),
    ),
}
KINDS = ("dataset=captioned", "dataset.train=200", "dataset.test=60", "model=cub_pair")


def made(runs: Path, *overrides: str, data: tuple[str, ...] = DIGITS, **values: Any) -> fedbench.Run:
    return fedbench.run(*SHORT, *data, *overrides, **{"runs_dir": runs, "save_models": True, **values})


def check(run: fedbench.Run) -> None:
    """The accuracy of what is predicted is the client's, to the last digit; of each its own class weights, if any."""
    shares = from_plain(run.config).protocol.test.weighting == "label_shares"
    assert run.clients["acc"].notna().any()
    for client, accuracy in enumerate(run.clients["acc"]):
        if np.isnan(accuracy):
            continue
        found = run.predict(client)
        assert found.y is not None
        assert found.scores.shape == (len(found.y), found.scores.shape[1])
        owned = run._scored_models.setup.population.label_counts[client].numpy()  # without validation samples
        weights = owned[found.y] if shares else np.ones(len(found.y))
        assert 100 * np.average(found.classes == found.y, weights=weights) == pytest.approx(accuracy, abs=1e-9)


def cases() -> list[tuple[str, str]]:
    refused = ("dp_fedavg", "best trained")  # counts no kept states of optimisers
    return [each for each in itertools.product(groups.names("method"), READINGS) if each != refused]


QUICK = [
    *[("ditto", "received"), ("finetune", "best of both"), ("fedsac", "best trained")],
]


@pytest.mark.parametrize(("method", "reading"), tiered(cases(), quick=QUICK))
def test_it_is_the_model_that_was_scored(method: str, reading: str, tmp_path: Path) -> None:
    data = NORMED if method in ("fedbn", "finetune_norm") else DIGITS
    check(made(tmp_path, f"method={method}", "protocol=quick", *READINGS[reading], data=data))


@pytest.mark.parametrize("name", tiered(groups.names("protocol"), quick=["pfedsim"]))
def test_of_every_protocol(name: str, tmp_path: Path) -> None:
    """Those of a mean of rounds have no model."""
    small = ("protocol.cohort=3", "protocol.augment=[]", "protocol.local.batch_size=16")
    run = made(tmp_path, f"protocol={name}", "method=fedsac", *small)
    if run.row["report"] == "mean_last_5":
        with pytest.raises(FedbenchError, match=re.escape("means over the models of five rounds")):
            run.predict(0)
    else:
        check(run)


@pytest.mark.slow
def test_of_clients_of_two_kinds(tmp_path: Path) -> None:
    check(made(tmp_path, "method=local", "protocol=quick", data=KINDS))


@pytest.mark.slow
def test_of_other_engines_and_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(made(tmp_path / "stacked", "method=fedper", "protocol=quick", "hardware.engine=stacked"))
    given = ("method=fedper", "protocol=quick", *READINGS["best trained"])
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "cut", *given, "checkpoint.rounds=1")
    check(made(tmp_path / "cut", *given))


def test_threads_take_turns_with_the_network_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose leaves one of them would otherwise replace while another computes."""
    run, predict, inside = made(tmp_path, "method=finetune", "protocol=quick"), LoopedTrainer.predict, list[int]()
    expected = [run.predict(client).scores.tolist() for client in range(CLIENTS)]

    def watched(*given: Any) -> torch.Tensor:
        inside.append(1)
        time.sleep(0.01)
        assert inside == [1]
        scores = predict(*given)
        inside.pop()
        return scores

    monkeypatch.setattr(LoopedTrainer, "predict", watched)
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = [*pool.map(lambda client: run.predict(client).scores.tolist(), range(CLIENTS))]
    assert found == expected


def test_of_a_run_by_an_engine_that_is_gone_and_a_gpu_of_another_machine(tmp_path: Path) -> None:
    run = made(tmp_path, "method=fedper", "protocol=quick")
    older = replace(run)
    older.config["hardware"] |= {"engine": "ray", "address": None, "device": "cuda:99"}
    assert older.predict(1).scores.tolist() == run.predict(1).scores.tolist()


@pytest.mark.slow
def test_of_given_samples(tmp_path: Path) -> None:
    """In the units of the data set: the pixels of digits, 0 to 16."""
    run = made(tmp_path, "method=ditto", "protocol=quick")
    setup = run._scored_models.setup
    tests = setup.federation.indices("local", 1)
    raw = setup.federation.x[tests].numpy()
    assert raw.max() > 1
    expected, found = run.predict(1), run.predict(1, raw)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    np.testing.assert_allclose(found.probabilities.sum(1), 1)
    assert found.y is None
    assert run.predict(1, raw.reshape(len(raw), -1)).scores.tolist() == found.scores.tolist()
    assert run.predict(1, raw[:0]).scores.shape == (0, 10)
    with pytest.raises(ConfigError, match=re.escape("x has the shape [2, 5]; n samples of client 1 have [n, 1, 8, 8]")):
        run.predict(1, np.zeros((2, 5)))
    with pytest.raises(ConfigError, match="client=4: this run trained the clients 0 to 3"):
        run.predict(4)
    with pytest.raises(ConfigError, match="client='4': the data name no clients; give a number"):
        run.predict("4")
    with pytest.raises(ConfigError, match="x holds <U1; samples must be numbers"):
        run.predict(1, [["a"] * 64])
    for other in (raw[:, 0], torch.from_numpy(raw).float().requires_grad_()):
        assert run.predict(1, other).scores.tolist() == found.scores.tolist(), "without an axis of one; of torch"
    with pytest.raises(ConfigError, match="x holds nan, inf or a number outside float32"):
        run.predict(1, np.where(raw > 8, np.nan, raw))
    with pytest.raises(ConfigError, match="x cannot be read as samples: setting an array element"):
        run.predict(1, [[1.0, 2.0], [3.0]])
    for odd in (1.5, None, [1]):
        with pytest.raises(ConfigError, match=re.escape(f"client={odd!r} is neither a number nor a name")):
            run.predict(odd)  # type: ignore[arg-type]
    assert run.predict(np.int64(1)).scores.tolist() == expected.scores.tolist()  # type: ignore[arg-type]


def test_an_unknown_token_number_is_refused_in_one_line(tmp_path: Path) -> None:
    words = np.random.default_rng(0).integers(1, 500, (60, 12))
    run = fedbench.run(
        *SHORT[2:], data=(words, np.arange(60) % 2, np.arange(60) % 3), runs_dir=tmp_path, save_models=True
    )
    assert run.predict(0, words).scores.shape == (60, 2)
    with pytest.raises(ConfigError, match=f"x holds 7 to 500; token ids are 0 to {words.max()}"):
        run.predict(0, [[7, 500, *[8] * 10]])
    with pytest.raises(ConfigError, match=r"x holds 7.5 to 8.0; token ids are"):
        run.predict(0, [[7.5, *[8] * 11]])


def test_a_frame_is_read_by_the_names_of_its_columns_or_refused_in_one_line(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(60.0), 7: np.ones(60), "y": ["p", "n"] * 30, "who": ["s", "t", "t"] * 20})
    run = fedbench.run(*SHORT[2:], data=(frame, "y", "who"), runs_dir=tmp_path, save_models=True)
    for odd, said in (
        (frame.assign(a="many"), "column 'a' holds no numbers: could not convert string"),
        (frame.assign(a=np.inf), "column 'a' holds inf at 0"),
    ):
        with pytest.raises(ConfigError, match=f"x cannot be read as samples: {said}"):
            run.predict("s", odd)
    for odd in (frame.drop(columns="a"), frame.assign(**{"7": 0})):
        with pytest.raises(ConfigError, match=r"x lacks the columns (a|7), or has several; give those of table-data"):
            run.predict("s", odd)
    assert run.predict("s", frame).scores.shape == (60, 2), "a name that is a number counts as its text"


def test_a_number_that_is_the_name_of_another_client_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = (np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2, np.arange(60) % 3)
    for first, told in ((0, False), (1, True)):
        warn_once.cache_clear()
        caplog.clear()
        data = (*given[:2], given[2] + first)
        run = fedbench.run(*SHORT[2:], data=data, runs_dir=tmp_path, save_models=True)
        assert run.predict(1).scores.tolist() == run.predict(str(1 + first)).scores.tolist()
        assert ("client=1 counts the clients from 0; client='1' is the one of that name" in caplog.text) is told


def test_pixels_in_other_units_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    pixels = np.random.default_rng(0).integers(0, 256, (60, 3, 8, 8)).astype(np.uint8)
    data = (pixels, np.arange(60) % 2, np.arange(60) % 3)
    run = fedbench.run(*SHORT[2:], data=data, runs_dir=tmp_path, save_models=True)
    for x in (pixels, pixels.astype(float), pixels[:1] * 0.0, pixels[:0] / 255):
        run.predict(0, x)
    masks = fedbench.run(*SHORT[2:], data=(pixels % 2, *data[1:]), runs_dir=tmp_path, save_models=True)
    masks.predict(0, (pixels % 2).astype(float))
    assert "x holds nothing above 1" not in caplog.text
    run.predict(0, pixels / 255)
    assert "x holds nothing above 1, the data up to 255; give x in the data's units" in caplog.text


def test_damaged_models_are_no_checkpoint_that_may_be_deleted(tmp_path: Path) -> None:
    """A finished run is shown, with or without models; only without its folder is it made again."""
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(FedbenchError, match=r"model.safetensors is damaged \(.*; make the run again after: rm -r "):
        _ = Run(tmp_path).models


@pytest.mark.slow
def test_what_was_not_kept_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = made(tmp_path, "method=fedavg", "protocol=quick", save_models=False)
    with pytest.raises(FedbenchError, match="run it again with save_models=true and force=true"):
        plain.predict(0)
    given = ("method=fedavg", "protocol=quick", "protocol.score=trained", "checkpoint.rounds=1")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path, *given, save_models=False)
    resumed = made(tmp_path, *given)
    with pytest.raises(FedbenchError, match="the run did not store its scored models"):
        resumed.predict(0)
    rare = made(tmp_path, "method=fedavg", "protocol=quick", *READINGS["trained"], "protocol.cohort=1", seed=3)
    undrawn = int(np.flatnonzero(rare.clients["acc"].isna())[0])
    with pytest.raises(FedbenchError, match="no round drew it"):
        rare.predict(undrawn)
