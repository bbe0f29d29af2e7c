"""Studies: counts by hand, measures on models whose similarity is known, seconds that add up."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedbench.config import compose
from fedbench.core import source
from fedbench.core.errors import ConfigError
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.methods.parts import features, mixing
from fedbench.models.layers import GlobalMean
from fedbench.papers import studies
from fedbench.papers.studies import (
    STUDIES,
    Stopwatch,
    Trained,
    multiply_adds,
    statistics_similarity,
)
from fedbench.runs import fingerprint
from fedbench.runs.building import build
from fedbench.runs.config import RunConfig, resolve
from tests.helpers.tiers import sampled
from tests.methods.toys import cross_entropy, descend, initial, logits, samples

TINY = ("dataset=synthetic", "dataset.train=300", "dataset.test=100", "protocol=quick", "protocol.rounds=2")
GROUPS = (*TINY, "method=local", "partition=label_groups", "model=lenet5_bn", "protocol.local.batch_size=30")


def config(*overrides: str) -> RunConfig:
    return resolve(compose.compose(overrides))


def run(name: str, *overrides: str) -> dict[str, float]:
    return STUDIES[name](config(*overrides))


# ---- costs


def test_multiply_adds_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), GlobalMean(), nn.Linear(3, 5))
    convolution = 3 * 2 * 9 * 4 * 4  # weights, at 4 x 4 places of a 6 x 6 image
    assert multiply_adds(net, (2, 6, 6)) == convolution + 4 * 3 * 16 + 3 * (16 + 1) + 15
    assert not [module for module in net.modules() if module._forward_hooks]


@pytest.mark.slow
def test_costs_are_those_that_fedcollab_prints() -> None:
    """Table 5, which counts ten labels; the parameters by hand for twenty."""
    images = (
        "dataset=synthetic",
        "dataset.channels=3",
        "dataset.size=32",
        "dataset.train=60",
        "dataset.test=20",
    )
    networks = (*images, "model=resnet18", "model.pretrained=false", "method=fedcollab")
    assert run("discriminator_cost", *networks) == {"macs": 104_600, "params": 105_001}
    assert run("model_cost", *networks) == {"macs": 37_220_352, "params": 11_181_642}
    twenty = run("model_cost", *networks, "dataset.classes=20")
    assert twenty["params"] == 11_181_642 + 513 * 10


def test_a_discriminator_needs_its_method() -> None:
    with pytest.raises(ConfigError, match="fedcollab"):
        run("discriminator_cost", *TINY, "method=fedavg")


# ---- code


def test_the_code_of_a_study_is_its_own_and_what_that_calls() -> None:
    found = {name: fingerprint._covered("study", studies.roots(name))[1] for name in STUDIES}
    assert source.Definition("fedbench.methods.fedap", "distances") in found["wdb"]
    assert source.Definition("fedbench.papers.studies", "operations") in found["model_cost"]
    assert all({each.module for each in covered} >= {"fedbench.papers.studies"} for covered in found.values())
    assert not {"fedbench.runs.config", "fedbench.runs.building"} & {each.module for f in found.values() for each in f}
    chosen = config(*ALONE)
    whole, plain = fingerprint.code_of(chosen, studies.roots("wdb")), fingerprint.code_of(chosen)
    assert whole.startswith(f"{plain} study:")
    assert fingerprint.changed(plain, whole) == [], "a result of before studies had a hash stands"


# ---- similarity


def models(after: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> Trained:
    return Trained(cast("Setup", build(config(*GROUPS))), before, after)


def test_similarity_of_statistics_by_hand() -> None:
    setup = cast("Setup", build(config(*GROUPS)))
    norm = next(name for name in setup.task.buffers if name.endswith("running_mean"))
    variance = norm.removesuffix("mean") + "var"
    statistics = {norm: torch.tensor([[0.0], [3.0]]), variance: torch.tensor([[1.0], [25.0]])}
    assert float(statistics_similarity(Trained(setup, {}, statistics), 0, 1)) == pytest.approx(1 / 5)  # 3, 4: 5


@pytest.mark.slow
def test_similarity_needs_four_clients_alone() -> None:
    with pytest.raises(ConfigError, match="trained alone"):
        run("cs", *GROUPS, "method=fedavg")
    with pytest.raises(ConfigError, match="batch normalisation"):
        run("wdb", *GROUPS, "model=lenet5")


# ---- seconds


def test_phases_of_fedsac_need_fedsac() -> None:
    with pytest.raises(ConfigError, match="fedsac"):
        run("fedsac_phases", *TINY, "method=fedavg")


# ---- with clients, costs and seconds by hand

ALONE = (*TINY, "method=local", "partition=label_groups", "model=mlp", "model.hidden=[7]", "protocol.local.epochs=1")
STEPS = (*ALONE, "protocol.local.batch_size=500", "protocol.optimizer.lr=1.5", "protocol.optimizer.momentum=0")


def test_layers_by_hand() -> None:
    """A linear layer counts at each place, what has no weights does not; the network is left as it was."""
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3, bias=False))
    assert multiply_adds(net, (4, 6)) == 4 * 30 + 60
    pooled = nn.Sequential(nn.BatchNorm2d(2), nn.MaxPool2d(2), GlobalMean())
    for training in (True, False):
        assert multiply_adds(pooled.train(training), (2, 4, 6)) == 4 * 48 + 2 * (6 + 1)
        assert [each.training for each in pooled.modules()] == [training] * 4
    assert not pooled[0].running_mean.any()


def test_costs_of_a_small_network_by_hand() -> None:
    network = (*TINY, "dataset.channels=1", "dataset.size=4", "dataset.classes=6", "model=mlp", "model.hidden=[7]")
    assert run("model_cost", *network) == {"macs": 16 * 7 + 7 * 6, "params": 17 * 7 + 8 * 6}
    found = run("discriminator_cost", *network, "method=fedcollab", "method.discriminator.hidden=5")
    assert found == {"macs": 7 * 5 + 6 * 5 + 5, "params": 8 * 5 + 7 * 5 + 6}


def test_similarities_of_clients_that_train_alone_by_hand() -> None:
    """Two rounds of one step on all samples each, from the same weights; losses on the first client's test samples."""
    chosen = build(config(*STEPS))
    data = [samples(chosen, k) for k in range(4)]
    begin, models, changes = initial(chosen), [], []
    for x, y in data:
        w = begin
        for _ in range(2):
            w = descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, 1.5)  # type: ignore[misc]
        models.append({name: leaf.detach() for name, leaf in w.items()})
        changes.append(np.concatenate([(models[-1][name] - begin[name]).ravel() for name in sorted(w)]))
    norms = [np.linalg.norm(each) for each in changes]
    tests = [chosen.federation.gather(chosen.federation.indices("local", k)) for k in range(4)]
    found = {name: run(name, *STEPS) for name in ("cs", "mdb", "ldb", "data_similarity")}
    for pair, (i, j) in {"i and i'": (0, 1), "i and j": (0, 2), "j and k": (2, 3), "i and k": (0, 3)}.items():
        heads = [models[k]["head.weight"].numpy() for k in (i, j)]
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(*heads, strict=True)]
        assert found["cs"][pair] == pytest.approx(np.mean(cosines), abs=1e-4)
        assert found["mdb"][pair] == pytest.approx(changes[i] @ changes[j] / norms[i] / norms[j], abs=1e-4)
        losses = [float(functional.cross_entropy(logits(models[k], tests[i][0]), tests[i][1])) for k in (i, j)]
        away = np.linalg.norm(changes[j] - changes[i])
        assert found["ldb"][pair] == pytest.approx((losses[0] - losses[1]) / away, abs=1e-4)
        labels = [data[k][1].tolist() for k in (i, j)]
        shared = set(labels[0]) & set(labels[1])
        count = sum(label in shared for label in labels[0] + labels[1])
        assert found["data_similarity"][pair] == pytest.approx(count / (len(labels[0]) + len(labels[1])))
    assert found["cs"]["i and i'"] < 0.99


def test_the_engine_that_trains_them_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Closing(LoopedTrainer):
        def close(self) -> None:
            closed.append("closed")

    monkeypatch.setattr(studies, "pick_trainer", lambda setup, _: Closing(setup))
    plain = json.dumps(dict(config(*STEPS, "seed=5").plain))
    models = studies.trained(plain)
    assert closed == ["closed"]
    assert studies.trained(plain) is models, "once for all measures"
    monkeypatch.setattr(studies.Simulation, "step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        studies.trained.__wrapped__(plain)
    assert len(closed) == 2


def test_four_clients_alone_are_enough_and_three_are_not() -> None:
    homo = [each for each in STEPS if not each.startswith("partition")] + ["partition=homo"]
    assert run("data_similarity", *homo, "partition.num_clients=4")["i and k"] > 0
    for refused in (["partition.num_clients=3"], ["partition.num_clients=4", "method=fedavg"]):
        with pytest.raises(ConfigError, match="four clients") as error:
            run("data_similarity", *homo, *refused)
        assert "\n" not in str(error.value)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each next piece of work takes: its second half of readings is later by that much."""
    read: list[float] = [0.0]

    def now() -> float:
        read.append(read[-1] + 1 + len(read) % 3)  # 2, 3, 1 seconds between readings, over and over
        return read[-1]

    monkeypatch.setattr(studies, "time", SimpleNamespace(perf_counter=now))
    return read


def test_a_gpu_is_waited_for_before_the_second_reading(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: told.append((device.type, len(clock))))
    for kind, waits in (("cuda", [("cuda", 2)]), ("cpu", [])):
        clock[1:], told[:] = [], []
        watch: Any = SimpleNamespace(setup=SimpleNamespace(federation=SimpleNamespace(device=torch.device(kind))))
        assert Stopwatch.timed(watch, lambda: "done") == ("done", clock[2] - clock[1])
        assert told == waits


@pytest.mark.slow
def test_seconds_of_clients_are_those_of_their_work_and_of_its_steps(clock: list[float]) -> None:
    """Readings of a client: before it, before and after its steps, after it."""
    base = (*TINY, "partition=homo", "partition.num_clients=3", "model=mlp", "protocol.rounds=3")
    both = ("protocol.score=both", "protocol.report=best_test", "protocol.eval_every=1")
    watch, state = studies.play(config(*base, *both, "method=fedrep"))
    readings = np.array(clock[1:]).reshape(-1, 4)  # [rounds x clients, readings]
    sizes = [watch.setup.federation.size(k) for k in range(3)] * 3
    assert [(lap.samples, lap.training, lap.seconds) for lap in watch.laps] == [
        (size, inner[2] - inner[1], inner[3] - inner[0]) for size, inner in zip(sizes, readings, strict=True)
    ]
    assert [record.round for record in state.history.records] == [0, 3]
    assert set(state.history.last.tallies) == {"local"}, "none after training"
    clock[1:] = []
    found = run("local_seconds", *base, "method=fedrep")["seconds_per_sample"]
    assert found == pytest.approx(np.mean((readings[:, 3] - readings[:, 0]) / sizes))


@pytest.mark.parametrize("matching", sampled([True, False], every=2))
def test_fedsacs_phases_are_timed_on_what_the_last_round_came_to(
    matching: bool, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}
    greedy: list[bool] = []
    angles_of = features.complementarity

    def complementarity(U: torch.Tensor, matched: bool) -> torch.Tensor:
        greedy.append(matched)
        return angles_of(U, matched)

    def project(rows: torch.Tensor) -> torch.Tensor:
        kept["W"] = mixing.project(rows)
        return kept["W"]  # type: ignore[no-any-return]

    def play(config: RunConfig, real: Any = studies.play) -> tuple[Stopwatch, State]:
        kept["watch"], kept["state"] = real(config)
        kept["read"] = len(clock)
        monkeypatch.setattr(studies, "mixing", SimpleNamespace(project=project))
        monkeypatch.setattr(studies, "features", SimpleNamespace(complementarity=complementarity))
        return kept["watch"], kept["state"]

    monkeypatch.setattr(studies, "play", play)
    method = ("method=fedsac", "method.similarity=parameters", "method.snap=null", "method.alpha_share=1")
    method += (f"method.angles={'greedy' if matching else 'principal'}",)
    found = run("fedsac_phases", *TINY, "partition=homo", "partition.num_clients=3", "model=mlp", *method)
    assert torch.allclose(kept["W"], kept["state"].server["W"], atol=1e-5)
    assert ((kept["W"] > 0.01) & (kept["W"] < 0.99)).any()
    assert greedy == [matching] * (1 + studies.REPEATS)
    laps = kept["watch"].laps
    after = np.array(clock[kept["read"] :]).reshape(3, studies.REPEATS, 2)
    similarity, angles, optimisation = np.median(after[..., 1] - after[..., 0], axis=1)
    subspaces = np.median([lap.seconds - lap.training for lap in laps])
    assert found == pytest.approx(
        {
            "training": np.median([lap.training for lap in laps]),
            "similarity": similarity,
            "complementarity": 3 * subspaces + angles,
            "optimization": optimisation,
        }
    )
