"""Records, a history and a finished folder of a run that never was."""

from __future__ import annotations

import io

import numpy as np
import torch
from rich.console import Console

from fedbench.core.files import as_csv, as_json
from fedbench.engine import checkpoint
from fedbench.engine.history import History, Labels, Record
from fedbench.metrics import Tally
from fedbench.runs import fingerprint
from fedbench.runs.run import Reading, client_rows, summarise

LABELS = Labels("digits", "dir0.1", "mlp", "fedavg", "quick", 3)
KEY = "0123456789abcdef"


def tally(correct, total):
    return Tally(np.array(correct), np.array(total))


def a_record(done, correct=(6, 1), seconds=0.1, **options):
    tallies = {
        "local": tally(list(correct), [10, 2]),
        "val": tally([done % 3, min(done, 1)], [4, 3]),
        "common": tally([30 + done % 50], [90]),
    }
    spent = {"train": seconds * done, "evaluate": 0.25}
    return Record(done, tallies, 100 * done, 200 * done, options.get("phases", spent), 1.0 / (done + 1))


def a_history():
    scores = [(0, 0), (5, 1), (8, 2), (6, 1)]
    return History([a_record(done, correct) for done, correct in enumerate(scores)])


def names(folder):
    return sorted(file.name for file in folder.iterdir())


class Split:
    def save(self, path):
        np.savez(path, a=np.arange(3))


def write_all(folder, history):
    reading = Reading("last")
    with folder:
        folder.write("config.yaml", b"seed: 3\n")
        folder.write("environment.json", as_json(fingerprint.environment()))
        folder.write_partition(Split(), [{"client": 0, "train": 5}])
        checkpoint.write_checkpoint(folder.checkpoint, {}, {}, key=folder.key)
        assert folder.status() == "partial"
        folder.write_history(history)
        folder.write("clients.csv", as_csv(client_rows(history, reading, sizes={"train": [4, 5]})))
        folder.write_collaboration(np.array([[1.0, 0.0], [1 / 3, 2 / 3]]))
        row = summarise(folder.labels, folder.key, history, reading, partition_hash="ph")
        folder.finish(row, {"w": torch.ones(2)})
    return row


def printed(renderable, width=200):
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()
