"""Networks x shapes of data: what makes sense trains a round, what makes none is refused with the reason."""

from __future__ import annotations

import itertools

import pytest
import torch

from fedbench.config import groups
from fedbench.core import rng
from fedbench.core.errors import FedbenchError
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation
from fedbench.runs import building
from fedbench.runs.config import from_plain
from tests.helpers.tiers import tiered
from tests.runs.pairings import CLASSES, SMALLEST, VISION, from_scratch, option, options, surroundings, trains

pytestmark = pytest.mark.usefixtures("folders")


# --- models
SHAPES = (
    "digits",
    "synthetic",
    "emnist",
    "cifar10",
    "cifar100",
    "tiny_imagenet",
)  # one data set of each shape
NO_MODEL = {  # (data set, model): why not
    **{
        ("digits", name): "does not fit inputs of shape"
        for name in ("cnn", "lenet5", "lenet5_bn", "simple_cnn", "cnn5", "resnet9")
    },
    **{
        ("digits", name): "does not fit inputs of shape"
        for name in ("cub_cnn", "fedrema_cnn", "fedrema_alexnet", "fedrema_alexnet_code", "squeezenet")
    },
    **{("synthetic", name): "does not fit inputs of shape" for name in ("cnn5", "squeezenet")},
    **{
        (name, model): reason
        for name in CLASSES
        for model, reason in (
            ("textcnn", "reads captions"),
            ("embedding", "reads token ids"),
            ("cub_pair", "clients have 2 different networks"),  # which the default method does not take
            ("small_pair", "clients have 2 different networks"),
        )
        if name not in ("cub", "captioned") or model == "embedding"
    },
    **{
        (name, model): f"clients have {count} different networks"
        for name in CLASSES
        for model, count in (("mixed", 4), ("mixed_cnns", 5), ("mixed_htfe2", 2))
    },
    **{(name, "torchvision"): "has no network; give model.architecture" for name in CLASSES},
    **{(name, "timm"): "has no network; give model.architecture|needs timm" for name in CLASSES},
}
TRAINED = [
    pair
    for pair in itertools.product(SHAPES, [name for name in options("model") if name != "auto"])
    if pair[1] not in VISION or pair[0] in ("digits", "synthetic", "emnist", "cifar10", "tiny_imagenet")
]


@pytest.mark.parametrize(("dataset", "model"), tiered(TRAINED, quick=TRAINED[::40]))
def test_every_model_trains_on_every_shape_or_says_why_not(dataset: str, model: str) -> None:
    partition = {**option("partition", "homo"), "num_clients": 20}
    reason = NO_MODEL.get((dataset, model))
    if reason is None:
        trains(dataset, partition, from_scratch(model))
        return
    with pytest.raises(FedbenchError, match=reason):
        trains(dataset, partition, from_scratch(model))


@pytest.mark.slow
def test_captions_train_a_text_network_and_only_that() -> None:
    homo, textcnn = option("partition", "homo"), option("model", "textcnn")
    trains("cub", homo, textcnn)
    trains("cub", homo, option("model", "cub_cnn"))
    with pytest.raises(FedbenchError, match=r"cub has \d\d words; set model\.vocabulary"):
        trains("cub", homo, {**textcnn, "vocabulary": 9})
    with pytest.raises(FedbenchError, match=r"was loaded without any: take .* dataset\.text=true"):
        trains("cub", homo, textcnn, dataset_options={"text": False})
    with pytest.raises(FedbenchError, match="feature_shift rotates images"):
        trains("cub", option("partition", "feature_shift"), textcnn)
    with pytest.raises(FedbenchError, match=r"protocol\.augment changes images"):
        trains("cub", homo, textcnn, augment=["flip"])


def test_normalisation_needs_more_than_one_sample() -> None:
    dirichlet = {**option("partition", "dir"), "num_clients": 20, "min_size": 1, "alpha": 0.05}
    with pytest.raises(FedbenchError, match="batch normalisation cannot train on a batch of 1 sample"):
        trains("digits", dirichlet, from_scratch("resnet18"))
    trains("digits", dirichlet, SMALLEST)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedproto", "fedsac", "fedpac", "fedgen", "moon", "fedap", "knnper"])
def test_methods_that_compare_features_need_one_vector_an_image(method: str) -> None:
    """SqueezeNet's features above 36 pixels are a vector at each of several places."""
    task = groups.registry("model").build(from_scratch("squeezenet")).task((3, 64, 64), 4)
    model = task.init(rng.torch_rng(0, "init"))
    with pytest.raises(FedbenchError, match=r"one vector an image; for images \[3, 64, 64\] .* 9 of them"):
        task.features(model, torch.zeros(2, 3, 64, 64))
    chosen = option("method", method)
    plain = {
        **surroundings(),
        "dataset": {**option("dataset", "synthetic"), "size": 64, "channels": 3, "train": 80, "test": 20},
        "partition": {**option("partition", "homo"), "num_clients": 4},
        "model": from_scratch("squeezenet"),
        "method": chosen,
        "protocol": {**option("protocol", "quick"), "rounds": 1, "local": {"iterations": 1, "batch_size": 4}},
    }
    setup = building.build(from_plain(plain))
    simulation = Simulation(setup, LoopedTrainer(setup))
    with pytest.raises(FedbenchError, match="one vector an image"):
        simulation.step(simulation.begin())


def test_imagenet_weights_need_colours() -> None:
    with pytest.raises(FedbenchError, match=r"3 channels, these have 1; use model\.pretrained=false"):
        trains("mnist", option("partition", "homo"), option("model", "resnet18"))
