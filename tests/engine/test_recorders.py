"""Recorders against their definitions, on small cases; and what a run keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from fedbench import recorders
from fedbench.config.compose import compose
from fedbench.core import trees
from fedbench.core.errors import ConfigError, FedbenchError, UnknownName
from fedbench.engine import checkpoint
from fedbench.engine.recording import Recorder, RoundContext, check
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.ifca import IFCA
from fedbench.methods.parts import features
from fedbench.models.small import LeNet5
from fedbench.recorders import RECORDERS, kernel, outputs, parse
from fedbench.runs import building, execution
from fedbench.runs.config import resolve
from fedbench.runs.folder import ARRAYS, files_of
from tests.helpers.pair import pair
from tests.helpers.runs import config
from tests.helpers.tiers import sampled
from tests.methods.toys import federation, setup


def only(name: str) -> Recorder:
    return parse([name], rounds=2)[0]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> RoundContext:
    """The last of two rounds of FedAvg with three of four clients, as a recorder sees it."""
    kept: list[RoundContext] = []

    class Spy(Recorder):
        name = "spy"

        def look(self, moment: RoundContext) -> dict[str, np.ndarray]:
            kept.append(moment)
            return {}

    run = config(tmp_path_factory.mktemp("runs"), "method=fedavg", "protocol.rounds=2", "protocol.cohort=3")
    setup = building.build(run)
    simulation = execution.Simulation(setup, execution.pick_trainer(setup, run.hardware), recorders=[Spy()])
    state = simulation.begin()
    while not simulation.done(state):
        simulation.step(state)
    (moment,) = kept
    return moment


def value(name: str, moment: RoundContext) -> Any:
    return only(name).look(moment)["value"]


def test_linear_cka_is_its_definition_and_knows_no_rotation_or_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(30, width, generator=generator, dtype=torch.float64) for width in (4, 6))
    x, y = X - X.mean(0), Y - Y.mean(0)
    expected = (y.t() @ x).norm() ** 2 / ((x.t() @ x).norm() * (y.t() @ y).norm())
    assert float(kernel(X) @ kernel(Y)) == pytest.approx(float(expected))
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    assert float(kernel(X) @ kernel(3 * X @ turn + 1)) == pytest.approx(1.0)


def test_cka_compares_every_layer_of_those_who_took_part(seen: RoundContext) -> None:
    found, ids = value("cka", seen), seen.cohort.ids.tolist()
    assert found.shape == (3, 4, 4), "the network has three linear maps"
    (absent,) = set(range(4)) - set(ids)
    assert np.isnan(found[:, absent]).all()
    x, _ = seen.setup.federation.gather(seen.setup.federation.global_test[:1])
    model = trees.row(seen.models, 0)
    layers = outputs(seen.setup.task, model, x)
    assert torch.allclose(layers[-1], seen.setup.task.apply(model, x)), "the last layer is the classifier"
    inside = found[:, ids][:, :, ids]
    assert np.allclose(inside, inside.transpose(0, 2, 1))
    assert np.allclose([np.diag(each) for each in inside], 1)
    assert inside.min() > 0


@pytest.mark.parametrize("share", [0.4, 0.6, 0.9, 1.0, 1.1])
def test_cka_s_inputs_are_spread_over_all_test_samples(
    seen: RoundContext, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are fewer than twice as many: the first of them may be of a few classes."""
    federation, asked = seen.setup.federation, []
    pool = federation.global_test.tolist()
    gather = federation.gather
    monkeypatch.setattr(recorders, "SAMPLES", round(share * len(pool)))
    monkeypatch.setattr(type(federation), "gather", lambda _, given: asked.append(given.tolist()) or gather(given))
    value("cka", seen)
    places = [pool.index(each) for each in asked[0]]
    assert len(places) == min(len(pool), round(share * len(pool)))
    gaps = np.diff([*places, len(pool)])
    assert places[0] == 0
    assert gaps.min() >= int(1 / min(share, 1))
    assert gaps.max() <= int(1 / min(share, 1)) + 1


def test_cosines_of_weights_updates_and_classifiers(seen: RoundContext) -> None:
    i, j = (seen.cohort.ids.tolist()[place] for place in (0, 2))
    flat, sent = (trees.flatten(tree) for tree in (seen.models, seen.message))
    assert value("model_cosine", seen)[i, j] == pytest.approx(
        float(cosine_similarity(flat[0], flat[2], dim=0)), abs=1e-6
    )
    change = flat - sent
    assert value("update_cosine", seen)[i, j] == pytest.approx(
        float(cosine_similarity(change[0], change[2], dim=0)), abs=1e-6
    )
    rows = seen.models["head.weight"]
    expected = [float(cosine_similarity(rows[0, c], rows[2, c], dim=0)) for c in range(10)]
    assert value("classifier_cosine", seen)[:, i, j] == pytest.approx(expected, abs=1e-6)


def test_of_a_classifier_of_several_layers_the_last_has_rows_of_classes(seen: RoundContext) -> None:
    chosen = setup(FedAvg(), federation((9, 9), (1, 16, 16)), LeNet5(classifier="linear"))
    assert len(chosen.task.groups["@head"]) == 6
    check(only("classifier_cosine"), chosen)


def test_what_a_server_sends_several_of_has_no_change() -> None:
    chosen = setup(IFCA(), federation((9, 9)))
    for name, reason in (("update_cosine", "does not send one 'fc.0.bias'"), ("update_variance", "one classifier")):
        with pytest.raises(ConfigError, match=f"record={name} does not fit IFCA: .*{reason}"):
            check(only(name), chosen)


def test_the_clients_a_recorder_is_tried_on_may_be_of_two_kinds() -> None:
    for name in ("classifier_cosine", "update_variance"):
        check(only(name), pair(FedAvg(), sizes=(9, 8, 7), kind=(0, 1, 1)))


def test_variance_of_updates_is_eq_10(seen: RoundContext) -> None:
    names = ("head.weight", "head.bias")
    change = torch.cat([(seen.uploads[n] - seen.message[n]).flatten(1).double() for n in names], dim=1)
    mean = sum(change) / 3
    expected = sum(float((each - mean).norm() ** 2) for each in change)
    assert float(value("update_variance", seen)) == pytest.approx(expected)


def test_similarity_is_of_soft_answers_to_one_feature(seen: RoundContext) -> None:
    found, (a, b) = value("similarity", seen), seen.cohort.ids[:2].tolist()
    task = seen.setup.task
    first = task.stages[0]  # the whole of a network of linear maps is classifier
    probe = torch.rand((1, *task.shape_before(first)), generator=seen.generator("similarity"))
    scores = [task.apply(trees.row(seen.models, k), probe, since=first)[0].double() for k in (0, 1)]
    answers = [(each / 0.5).softmax(0) for each in scores]
    assert found[a, b] == pytest.approx(float(cosine_similarity(*answers, dim=0)))
    assert np.array_equal(found, value("similarity", seen), equal_nan=True), "no draw of the run's is used up"


def test_complementarity_is_of_the_clients_own_features(seen: RoundContext) -> None:
    a, b = seen.cohort.ids[:2].tolist()
    task, federation = seen.setup.task, seen.setup.federation
    bases = [
        features.directions(features.products(trees.row(seen.models, place), federation.all_of(client), task), 3)
        for place, client in ((0, a), (1, b))
    ]
    angles = torch.linalg.svdvals(bases[0].double().t() @ bases[1].double()).clamp(max=1).arccos()
    assert value("complementarity", seen)[a, b] == pytest.approx(float(angles.mean().cos()), abs=1e-6)


class Seen(Recorder):
    """Keeps what it is tried on."""

    name = "seen"
    tried: ClassVar[list[RoundContext]] = []

    def look(self, moment: RoundContext) -> dict[str, np.ndarray]:
        self.tried.append(moment)
        return {"value": np.array([float(moment.round)])}


def test_a_recorder_is_tried_on_two_clients_in_rounds_that_there_are() -> None:
    chosen = setup(FedAvg(), rounds=3)
    check(Seen(rounds=(1, 3)), chosen)
    check(Seen(), setup(FedAvg(), federation((9,))))
    two, one = Seen.tried[-2:]
    assert (two.cohort.ids.tolist(), one.cohort.ids.tolist(), two.round) == ([0, 1], [0], 1)
    assert {len(leaf) for leaf in two.models.values()} == {2}
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    square = two.square(torch.stack([matrix, -matrix]))
    assert square.shape == (2, 5, 5)
    assert np.isnan(square).sum() == 2 * (25 - 4)
    assert square[1, :2, :2].tolist() == (-matrix).tolist()


def test_what_a_run_lacks_are_rounds_that_were_due() -> None:
    last, some = Seen(), Seen(rounds=(1, 3))
    for recorder, held, completed, lacks in (
        (some, [], 0, False), (some, [], 1, True), (some, [1], 1, False), (some, [1], 2, False), (some, [1], 3, True),
        (some, [1, 3], 3, False), (some, [1, 2, 3], 3, False), (some, [3], 3, True), (last, [], 2, False),
        (last, [], 3, True), (last, [3], 3, False),
    ):  # fmt: skip
        arrays = {"record/seen/round": np.array(held)} if held else {}
        assert recorder.lacks(arrays, completed, 3) is lacks


def test_rounds_are_read_off_the_list() -> None:
    first, second = parse(["cka", "similarity@1", "50", "10"], rounds=50)
    assert (first.name, first.rounds, second.name, second.rounds) == ("cka", (), "similarity", (1, 10, 50))
    assert [done for done in range(1, 61) if second.due(done, 60)] == [1, 10, 50]
    assert [done for done in range(1, 61) if first.due(done, 60)] == [60]
    assert all(only("update_variance").due(done, 60) for done in range(1, 61))
    for entries in (["cka@x"], ["cka", "cka"]):
        with pytest.raises(ConfigError):
            parse(entries, rounds=50)
    for late in (["similarity@0"], ["similarity@1", "51"]):
        with pytest.raises(ConfigError, match=r"^record=similarity@(0|51): the run has rounds 1 to 50$"):
            parse(late, rounds=50)
    with pytest.raises(UnknownName, match="cka"):
        parse(["ckas"], rounds=50)


def test_a_run_keeps_what_was_recorded_and_its_numbers(tmp_path: Path) -> None:
    plain = config(tmp_path / "plain", "method=fedavg")
    asked = config(tmp_path / "asked", "method=fedavg", "record=[update_variance,similarity@1,3]")
    assert plain.key == asked.key
    rows = [execution.execute(each) for each in (plain, asked)]
    assert rows[0].row["acc"] == rows[1].row["acc"]
    arrays = files_of(rows[1].folder).npz(ARRAYS)
    assert arrays["record/update_variance/round"].tolist() == [1, 2, 3, 4]
    assert arrays["record/similarity/round"].tolist() == [1, 3]
    assert arrays["record/similarity/value"].shape == (2, 4, 4)
    again = config(tmp_path / "plain", "method=fedavg", "record=[cka]")
    with pytest.raises(FedbenchError, match="made without record=cka; force=true"):
        execution.execute(again)
    execution.execute(config(tmp_path / "plain", "method=fedavg", "record=[cka]", "force=true"))
    assert "record/cka/value" in files_of(execution.execute(again).folder).npz(ARRAYS)
    execution.execute(config(tmp_path / "plain", "method=fedavg", "force=true"))
    assert execution.execute(plain).arrays == {}, "what an earlier run recorded went with it"


@pytest.mark.parametrize(
    ("method", "record", "reason"),
    sampled(
        [
            ("local", "update_variance", "Local: its clients do not receive"),
            ("fedavg", "collaboration", "no collaboration matrix"),
            ("fedavg", "simplex", "sosicfl"),
            ("sosicfl", "cka", "one network each"),
            ("fedavg", "cka@50", "rounds 1 to 4"),
        ],
        every=3,
    ),
)
def test_what_a_method_has_not_is_refused_before_anything_trains(
    tmp_path: Path, method: str, record: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        execution.execute(config(tmp_path, f"method={method}", f"record=[{record}]"))
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.slow
def test_every_recorder_looks_at_some_method(tmp_path: Path) -> None:
    names = ",".join(name for name in RECORDERS if name != "simplex")
    run = config(tmp_path, "method=fedsac", f"record=[{names}]", "protocol.rounds=1")
    arrays = files_of(execution.execute(run).folder).npz(ARRAYS)
    kept = {name.split("/")[1] for name in arrays if name.startswith("record/")}
    assert kept == set(RECORDERS) - {"simplex"}
    assert recorders.RECORDERS.get("simplex").__doc__


@pytest.mark.slow
def test_no_accuracy_over_the_simplex_is_of_samples_that_were_trained_on(tmp_path: Path) -> None:
    """A scenario of FedCollab pools the splits, whatever the protocol says."""
    scenario = ("dataset=digits", "partition=label_shift", "model=mlp", "protocol=fedcollab_label_shift")
    chosen = (*scenario, "method=sosicfl", "record=[simplex]", "protocol.rounds=1", "protocol.test.pool=false")
    folder = execution.execute(resolve(compose([*chosen, f"runs_dir={tmp_path}"]))).folder
    arrays = files_of(folder).npz(ARRAYS)
    assert np.isnan(arrays["record/simplex/global"]).all()
    assert np.isfinite(arrays["record/simplex/local"]).all()


@pytest.mark.slow
def test_accuracy_over_the_simplex_is_that_of_the_models_there(tmp_path: Path) -> None:
    short = ("protocol.rounds=1", "protocol.test.pool=false")
    run = config(tmp_path, "method=sosicfl", "method.clusters=2", "record=[simplex]", "save_models=true", *short)
    folder = execution.execute(run).folder
    arrays = files_of(folder).npz(ARRAYS)
    points, overall, local = (arrays[f"record/simplex/{part}"][0] for part in ("points", "global", "local"))
    assert points.shape == (2000, 3)
    assert np.allclose(points.sum(1), 1)
    assert local.shape == (2000, 4)
    assert np.isfinite(overall).all()
    assert overall.std() > 0
    server = trees.part(checkpoint.read_checkpoint(folder / "model.safetensors")[0], "server")
    setup = building.build(run)
    data, names = setup.federation, setup.task.parameters | setup.task.buffers
    tests = [data.gather(each) for each in (data.global_test, *(data.indices("local", k) for k in range(4)))]
    for alpha, *accuracies in zip(points[:9], overall, *local.T, strict=False):
        ends = trees.part(server, "endpoints").items()
        mixed = {name: sum(float(a) * end for a, end in zip(alpha, leaf, strict=True)) for name, leaf in ends}
        model: Any = {name: leaf for name, leaf in {**server, **mixed}.items() if name in names}
        right = [float((setup.task.apply(model, x).argmax(1) == y).double().mean()) for x, y in tests]
        assert accuracies == pytest.approx(right)
