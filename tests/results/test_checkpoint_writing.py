"""A checkpoint that could not be written, under SIGKILL and full disks too, costs none that was."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch

from fedbench.core.errors import CheckpointError
from fedbench.core.files import sweep
from fedbench.engine import checkpoint
from tests.results.toys import names

KILLS = """
import os, random, signal, sys, time, torch
from fedbench.engine import checkpoint

torch.set_num_threads(1)
path, chance, step = sys.argv[1], random.Random(0), 0
for _ in range(20):
    reader, acknowledge = os.pipe()
    child = os.fork()
    if child == 0:
        while True:
            tree = {"a": torch.full((200_000,), step), "b": torch.tensor(step)}
            checkpoint.save(path, tree, {"step": step})
            os.write(acknowledge, step.to_bytes(8, "little"))
            step += 1
    os.close(acknowledge)
    os.read(reader, 8)
    time.sleep(chance.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged = int.from_bytes(os.read(reader, 1 << 16)[-8:], "little")
    os.close(reader)
    tree, meta = checkpoint.load(path)
    assert meta["step"] >= max(acknowledged, step), "a checkpoint was lost"
    assert tree["b"] == meta["step"] and tree["a"].eq(meta["step"]).all(), "a checkpoint was mixed"
    step = meta["step"] + 1
print(step)
"""


def test_a_killed_writer_never_costs_an_acknowledged_checkpoint(tmp_path):
    path = tmp_path / "c.safetensors"
    run = subprocess.run([sys.executable, "-c", KILLS, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= 20
    for left_over in (".tmp-1-aa-c.safetensors", ".tmpAbCdEf"):  # ours, and safetensors' own
        (tmp_path / left_over).write_bytes(b"half")
    sweep(tmp_path)
    assert names(tmp_path) == ["c.safetensors"]


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path):
    path = tmp_path / "c"
    checkpoint.save(path, {"a": torch.ones(10)}, {"round": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(CheckpointError, match="the previous one is kept") as error:
            checkpoint.save(path, {"a": torch.zeros(1_000_000)}, {"round": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert checkpoint.load(path)[1] == {"round": 1}
    assert names(tmp_path) == ["c"]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(CheckpointError, match="cannot write checkpoint"):
        checkpoint.save(tmp_path / "missing" / "c", {"a": torch.ones(1)}, {})


def test_meta_that_is_not_json_leaves_the_previous_checkpoint(tmp_path):
    checkpoint.save(tmp_path / "c", {}, {"round": 1})
    with pytest.raises(TypeError):
        checkpoint.save(tmp_path / "c", {}, {"round": object()})
    assert checkpoint.load(tmp_path / "c")[1] == {"round": 1}
    assert names(tmp_path) == ["c"]
