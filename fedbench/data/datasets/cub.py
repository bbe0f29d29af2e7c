"""CUB-200-2011 (Wah et al. 2011): 5,994 + 5,794 photographs of 200 birds, ten captions each (Reed et al. 2016).

Captions are lower case words; a token is a word's rank among those of the training captions, most frequent first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import at_least, finite, positive
from fedbench.core.cache import Arrays
from fedbench.core.errors import DataCorrupt, Report
from fedbench.data.dataset import Dataset
from fedbench.data.files import FileSource, Part
from fedbench.data.formats import lines_of, read_images

INDEX = ("images.txt", "image_class_labels.txt", "train_test_split.txt")
CAPTIONS = 10
CAPTION_FOLDERS = ("cvpr2016_cub/text_c10", "text_c10", "CUB_200_2011/text_c10", "CUB_200_2011/text", "text")
PADDING, UNKNOWN = "<pad>", "<unknown>"  # tokens 0 and 1


@dataclass(frozen=True)
class Cub(FileSource):
    """Birds, in the layout of CUB_200_2011.tgz; captions in that of cvpr2016_cub (text_c10)."""

    name: ClassVar[str] = "cub"
    folders: ClassVar[tuple[str, ...]] = ("CUB_200_2011", "CUB_200_2011/CUB_200_2011", "cub", "cub/CUB_200_2011")
    published: ClassVar[tuple[int, int]] = (5_994, 5_794)
    label_count: ClassVar[int] = 200
    parts: ClassVar[tuple[Part, ...]] = (
        Part(
            ("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",),
            "CUB_200_2011.tgz",
            "97eceeb196236b17998738112f37df78",
            "CUB_200_2011",
        ),
    )

    model: str = "cub_cnn"
    size: int = at_least(1, 64)  # height and width in pixels; images are scaled without keeping their aspect ratio
    text: bool = False  # true: read the captions too
    words: int = at_least(1, 30)  # words of a caption; longer captions are cut, shorter ones padded
    mean: tuple[float, ...] = finite((0.485, 0.456, 0.406))
    std: tuple[float, ...] = positive((0.229, 0.224, 0.225))

    @property
    def variant(self) -> str:
        return f"-{self.size}" + (f"-text{self.words}" if self.text else "")

    @property
    def by_hand(self) -> str:
        """Only a browser can download the captions, and no checksum is published."""
        return (
            "its captions (dataset.text=true) by hand: cvpr2016_cub.tar.gz of github.com/reedscot/cvpr2016, unpacked "
            "so that cvpr2016_cub/text_c10 lies in the data folder"
        )

    def files(self, folder: Path) -> list[Path] | None:
        """The three index files, and the folder of captions if it is wanted."""
        index = [folder / name for name in INDEX]
        if not all(path.is_file() for path in index) or not (folder / "images").is_dir():
            return None
        if not self.text:
            return index
        places = (place / name for place in (folder, *self.places()) for name in CAPTION_FOLDERS)
        captions = next((place for place in places if place.is_dir()), None)
        return None if captions is None else [*index, captions]

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images and labels in the order of the index, training before test; captions as tokens."""
        folder = files[0].parent
        names, labels, trains = (_index(path) for path in files[:3])
        if not names.keys() == labels.keys() == trains.keys():
            raise DataCorrupt(f"the index files in {folder} list different images; fetch it again")
        ids = sorted(names, key=lambda i: (trains[i] != "1", i))
        count = sum(trains[i] == "1" for i in ids)
        y = np.array([_label(files[1], labels[i], self.label_count) for i in ids])
        places = [_inside(folder / "images", names[i], files[0]) for i in ids]
        x = read_images(places, self.size, resize=True, report=report)
        arrays: dict[str, NDArray[Any]] = {"x": x, "y": y, "num_train": np.array([count])}
        if self.text:
            captions = [read_captions(files[3] / Path(names[i]).with_suffix(".txt")) for i in ids]
            vocabulary = vocabulary_of(captions[:count])
            arrays |= {"text": tokens(captions, vocabulary, self.words), "vocabulary": np.array(vocabulary)}
        return arrays

    def dataset(self, arrays: Arrays) -> Dataset:
        vocabulary = tuple(map(str, arrays.get("vocabulary", ())))
        return replace(super().dataset(arrays), text=arrays.get("text"), vocabulary=vocabulary)


def _index(path: Path) -> dict[int, str]:
    """Lines "number value" as a dictionary.

    Raises:
        DataCorrupt: a line of another form, or a number twice.
    """
    found: dict[int, str] = {}
    for line in lines_of(path):
        number, _, value = line.partition(" ")
        if not number.isdigit() or not value or int(number) in found:
            raise DataCorrupt(f"{path} has the line '{line[:60]}', expected a new number and a value; fetch it again")
        found[int(number)] = value
    return found


def _label(path: Path, text: str, classes: int) -> int:
    if not text.isdigit() or not 1 <= int(text) <= classes:
        raise DataCorrupt(f"{path} has the label '{text}', expected 1..{classes}; fetch it again")
    return int(text) - 1


def _inside(folder: Path, name: str, index: Path) -> Path:
    if name.startswith("/") or ".." in name.split("/"):
        raise DataCorrupt(f"{index} names '{name}', which lies outside the data set; fetch it again")
    return folder / name


def read_captions(path: Path) -> list[list[str]]:
    """The words of the ten captions of one image; a line is a caption.

    Raises:
        DataCorrupt: the file is missing, or has fewer captions.
    """
    try:
        lines = path.read_bytes().decode("utf-8", "replace").lower().splitlines()
    except OSError as error:
        raise DataCorrupt(f"{path} is missing; fetch the captions again") from error
    captions = [words for line in lines if (words := re.findall(r"[a-z]+", line))][:CAPTIONS]
    if len(captions) < CAPTIONS:
        raise DataCorrupt(f"{path} holds {len(captions)} captions, expected {CAPTIONS}; fetch them again")
    return captions


def vocabulary_of(captions: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    """Padding, the unknown word, then all words, the most frequent first and equally frequent ones by name."""
    counts = Counter(word for image in captions for caption in image for word in caption)
    return [PADDING, UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))]


def tokens(captions: Sequence[Sequence[Sequence[str]]], vocabulary: Sequence[str], words: int) -> NDArray[np.int32]:
    """Token numbers int32 [n, 10, words] of captions [n][10], cut or padded."""
    number = {word: token for token, word in enumerate(vocabulary)}
    unseen = number[UNKNOWN]
    out = np.zeros((len(captions), CAPTIONS, words), dtype=np.int32)
    for image, each in zip(out, captions, strict=True):
        for row, caption in zip(image, each, strict=True):
            kept = [number.get(word, unseen) for word in caption[:words]]
            row[: len(kept)] = kept
    return out
