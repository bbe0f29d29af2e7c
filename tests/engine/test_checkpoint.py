"""Checkpoints: bit-exact, and never quietly wrong."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedbench.core.errors import CheckpointError
from fedbench.core.files import sweep
from fedbench.core.rng import torch_rng
from fedbench.engine import checkpoint
from tests.runs.toys import names

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip


def a_tree():
    base = torch.randn(4, 6, generator=torch_rng(0, "test"))
    tree = {f"body.{dtype}": (base * 3).to(dtype) for dtype in DTYPES}
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64)
    return tree | {
        "personal/head.bias": torch.tensor(3.5),
        "counter": torch.tensor(7),
        "flag": torch.tensor(True),
        "transposed": base.t(),
        "strided": base[:, ::2],
        "row": base[1],
        "expanded": base[0].expand(5, 6),
        "expanded scalar": torch.tensor(2.0).expand(3, 2),
        **{f"one of {dtype}": torch.ones((), dtype=dtype).expand(1) for dtype in DTYPES},
        "one of one": torch.tensor(3.0).expand(1, 1),
        "column": torch.ones(3, 2)[:, :1],
        "alias": base,
        "alias again": base,
        "overlap": base.flatten()[:10],
        "odd": odd,
        "empty": torch.empty(0, 3),
        'names may hold ü and / and "': torch.ones(1),
        "needs grad": torch.ones(2, requires_grad=True),
    }


def bits(tensor):
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).tolist()


def test_round_trip_is_bit_exact(tmp_path):
    tree, meta = a_tree(), {"round": 3, "loss": 0.1 + 0.2, "list": [1, None, "x"], "nan": float("nan")}
    checkpoint.write_checkpoint(tmp_path / "c.safetensors", tree, meta, key="abc")
    loaded, found = checkpoint.read_checkpoint(tmp_path / "c.safetensors", key="abc")
    assert set(loaded) == set(tree)
    for name, leaf in tree.items():
        assert loaded[name].dtype == leaf.dtype, name
        assert loaded[name].shape == leaf.shape, name
        assert bits(loaded[name]) == bits(leaf), name
    assert json.dumps(found) == json.dumps(meta)


def test_is_as_readable_as_its_folder(tmp_path):
    tmp_path.chmod(0o750)
    checkpoint.write_checkpoint(tmp_path / "c", {"a": torch.ones(1)}, {})
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o640


def test_loaded_tensors_own_their_memory(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoint.write_checkpoint(path, {"a": torch.zeros(1000)}, {})
    loaded, _ = checkpoint.read_checkpoint(path)
    path.write_bytes(b"\xff" * path.stat().st_size)
    loaded["a"].add_(1)
    assert loaded["a"].tolist() == [1.0] * 1000


def test_saving_leaves_the_tree_alone(tmp_path):
    leaf = torch.zeros(3).expand(4, 3)
    checkpoint.write_checkpoint(tmp_path / "c", {"a": leaf}, {})
    assert leaf.stride() == (0, 1)


def test_an_empty_tree(tmp_path):
    checkpoint.write_checkpoint(tmp_path / "c", {}, {"round": 0})
    assert checkpoint.read_checkpoint(tmp_path / "c") == ({}, {"round": 0})


def test_another_configuration_is_refused_in_one_line(tmp_path):
    checkpoint.write_checkpoint(tmp_path / "c", {"a": torch.ones(1)}, {}, key="aaaa")
    with pytest.raises(CheckpointError, match=r"another configuration \(key aaaa, not bbbb\); delete it") as error:
        checkpoint.read_checkpoint(tmp_path / "c", key="bbbb")
    assert "\n" not in str(error.value)
    checkpoint.read_checkpoint(tmp_path / "c")


def test_a_path_may_be_text_and_what_has_not_all_marks_of_a_checkpoint_is_none(tmp_path):
    path = str(tmp_path / "c")
    checkpoint.write_checkpoint(path, {"a": torch.ones(1)}, {"round": 2})
    assert checkpoint.read_checkpoint(path)[1] == {"round": 2}
    whole = {"format": checkpoint.FORMAT, "key": "k", "meta": "{}", "checksum": "0"}
    for marks in (
        whole | {"format": "fedbench-checkpoint-2"},
        *({k: v for k, v in whole.items() if k != n} for n in whole),
    ):
        save_file({"a": torch.ones(1)}, path, marks)
        with pytest.raises(CheckpointError, match="is not in the format fedbench-checkpoint-1; delete"):
            checkpoint.read_checkpoint(path)


def test_missing(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        checkpoint.read_checkpoint(tmp_path / "c")


def foreign_files(folder):
    good = folder / "good"
    checkpoint.write_checkpoint(good, {"a": torch.ones(8)}, {"round": 1}, key="k")
    content = good.read_bytes()
    tensors = {"a": torch.ones(8)}
    save_file(tensors, folder / "plain")
    save_file(tensors, folder / "other", {"format": "pt"})
    newer = {"format": "fedbench-checkpoint-2", "key": "k", "meta": "{}", "checksum": "0"}
    save_file(tensors, folder / "newer", newer)
    torch.save(tensors, folder / "pickle")
    np.savez(folder / "arrays.npz", a=np.ones(3))
    for name, data in {
        "empty": b"",
        "text": b"hello\n",
        "zeros": bytes(4096),
        "ones": b"\xff" * 64,
        "longer": content + b"\0",
        "twice": content + content,
    }.items():
        (folder / name).write_bytes(data)
    return [file for file in sorted(folder.iterdir()) if file != good]


def test_foreign_files_are_refused_in_one_line(tmp_path):
    files = foreign_files(tmp_path)
    assert len(files) == 11
    for file in files:
        with pytest.raises(CheckpointError, match="delete it to start over") as error:
            checkpoint.read_checkpoint(file)
        assert "\n" not in str(error.value), file
        assert str(file) in str(error.value)


def test_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "c"
    checkpoint.write_checkpoint(path, {"a": torch.arange(20), "b": torch.tensor(True)}, {"round": 1}, key="k")
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            checkpoint.read_checkpoint(path)


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    tree = {"a": torch.tensor([0, 1]), "b": torch.tensor([True, False])}
    checkpoint.write_checkpoint(path, tree, {"round": 1}, key="k")
    content = path.read_bytes()
    for position in range(len(content)):
        for bit in (position * 3 % 8, (position * 3 + 4) % 8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                loaded, meta = checkpoint.read_checkpoint(path, key="k")
            except CheckpointError:
                continue
            # A flip that changes nothing, such as one in the padding, may pass.
            assert meta == {"round": 1}, (position, bit)
            assert all(bits(loaded[name]) == bits(leaf) for name, leaf in tree.items()), (position, bit)


def test_a_swapped_tensor_of_another_checkpoint_is_noticed(tmp_path):
    for name, fill in (("x", 1.0), ("y", 2.0)):
        checkpoint.write_checkpoint(tmp_path / name, {"a": torch.full((64,), fill)}, {"round": 1}, key="k")
    x, y = (bytearray((tmp_path / name).read_bytes()) for name in "xy")
    x[-256:] = y[-256:]
    (tmp_path / "x").write_bytes(x)
    with pytest.raises(CheckpointError, match="checksum"):
        checkpoint.read_checkpoint(tmp_path / "x")


@pytest.mark.parametrize(("old", "new"), [(b'"F32"', b'"I32"'), (b"[2,3]", b"[3,2]"), (b'"a"', b'"b"')])
def test_a_header_that_was_altered_and_still_parses_is_noticed(tmp_path, old, new):
    path = tmp_path / "c"
    checkpoint.write_checkpoint(path, {"a": torch.ones(2, 3)}, {})
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    with pytest.raises(CheckpointError, match="checksum"):
        checkpoint.read_checkpoint(path)


# A checkpoint that could not be written, under SIGKILL and full disks too, costs none that was.

KILLS = """
import os, random, signal, sys, time, torch
from fedbench.engine import checkpoint

torch.set_num_threads(1)
path, chance, step = sys.argv[1], random.Random(0), 0
for _ in range(10):
    reader, acknowledge = os.pipe()
    child = os.fork()
    if child == 0:
        while True:
            tree = {"a": torch.full((200_000,), step), "b": torch.tensor(step)}
            checkpoint.write_checkpoint(path, tree, {"step": step})
            os.write(acknowledge, step.to_bytes(8, "little"))
            step += 1
    os.close(acknowledge)
    os.read(reader, 8)
    time.sleep(chance.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged = int.from_bytes(os.read(reader, 1 << 16)[-8:], "little")
    os.close(reader)
    tree, meta = checkpoint.read_checkpoint(path)
    assert meta["step"] >= max(acknowledged, step), "a checkpoint was lost"
    assert tree["b"] == meta["step"] and tree["a"].eq(meta["step"]).all(), "a checkpoint was mixed"
    step = meta["step"] + 1
print(step)
"""


@pytest.mark.slow
def test_a_killed_writer_never_costs_an_acknowledged_checkpoint(tmp_path):
    path = tmp_path / "c.safetensors"
    run = subprocess.run([sys.executable, "-c", KILLS, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= 10
    for left_over in (".tmp-1-aa-c.safetensors", ".tmpAbCdEf"):  # ours, and safetensors' own
        (tmp_path / left_over).write_bytes(b"half")
    sweep(tmp_path)
    assert names(tmp_path) == ["c.safetensors"]


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path):
    path = tmp_path / "c"
    checkpoint.write_checkpoint(path, {"a": torch.ones(10)}, {"round": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(CheckpointError, match="the previous one is kept") as error:
            checkpoint.write_checkpoint(path, {"a": torch.zeros(1_000_000)}, {"round": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert checkpoint.read_checkpoint(path)[1] == {"round": 1}
    assert names(tmp_path) == ["c"]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(CheckpointError, match="cannot write checkpoint"):
        checkpoint.write_checkpoint(tmp_path / "missing" / "c", {"a": torch.ones(1)}, {})


def test_meta_that_is_not_json_leaves_the_previous_checkpoint(tmp_path):
    checkpoint.write_checkpoint(tmp_path / "c", {}, {"round": 1})
    with pytest.raises(TypeError):
        checkpoint.write_checkpoint(tmp_path / "c", {}, {"round": object()})
    assert checkpoint.read_checkpoint(tmp_path / "c")[1] == {"round": 1}
    assert names(tmp_path) == ["c"]
