"""Checksums of a checkpoint's files: made at the end, and compared when asked."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
import xxhash

from hf_compat.checkpoint import publish
from hf_compat.checkpoint.completeness import read_marker, write_marker
from hf_compat.checkpoint.flushing import checksum, checksums_of
from hf_compat.tools.checkpoints import as_table, describe_checkpoints
from tests.support.checkpoints import small_checkpoint


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of all kinds of files, two of them in a folder."""
    with publish.staging(tmp_path / "checkpoint-1", step=1, run_id="run") as folder:
        small_checkpoint(folder)
        (folder / "config.json").write_text("{}")
        (folder / "global_step1").mkdir()
        torch.save({"a": torch.zeros(9)}, folder / "global_step1" / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
        (folder / "global_step1" / "__0_0.distcp").write_bytes(os.urandom(999))
    return tmp_path / "checkpoint-1"


def problems(folder):
    (found,) = describe_checkpoints(folder, verify=True)
    return found.problems


def test_a_checksum_is_that_of_xxhash(tmp_path):
    """It is the XXH3 of 128 bits of all bytes, which anyone can compute."""
    content = os.urandom(3 * 2**18 + 5)
    (tmp_path / "file").write_bytes(content)
    assert checksum(tmp_path / "file") == xxhash.xxh3_128(content).hexdigest()


def test_every_flipped_bit_is_found(saved):
    """In any file, of every eighth of a byte the checksum is another; the marker itself is no exception."""
    assert problems(saved) == ()
    for path in [path for path in saved.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        for position in range(0, len(content), max(1, len(content) // 9)):
            changed = bytearray(content)
            changed[position] ^= 1 << (position % 8)
            path.write_bytes(bytes(changed))
            assert problems(saved) != (), (path.name, position)
        path.write_bytes(content)
    assert problems(saved) == ()


def test_a_file_of_another_checkpoint_is_found(saved, tmp_path):
    """One of the same size in the place of each; and weights that would be read instead of those saved."""
    other = small_checkpoint(tmp_path / "other", value=1.0)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"):
        before = (saved / name).read_bytes()
        shutil.copy(other / name, saved / name)
        assert problems(saved) == (f"`{name}` has changed since the save: its checksum is another.",)
        (saved / name).write_bytes(before)
    shutil.copy(other / "model.safetensors", saved / "adapter_model.safetensors")
    assert problems(saved) == ("`adapter_model.safetensors` was added after the save.",)


def test_what_is_no_damage(saved):
    """Notes of a person are none; a text that a callback has rewritten is named, and the run resumes from it."""
    (saved / "notes.txt").write_text("mine")
    assert problems(saved) == ()
    (saved / "config.json").write_text('{"edited": true}')
    assert problems(saved) == ("`config.json` has changed since the save: its checksum is another.",)
    assert [item.is_newest for item in describe_checkpoints(saved)] == [True]


def test_a_checkpoint_without_checksums(saved):
    """One of an older version, or of transformers, can be read; the table says what was not verified."""
    marker = json.loads((saved / "lightning.json").read_text())
    write_marker(saved, step=1, run_id="run")
    assert set(json.loads((saved / "lightning.json").read_text())) == {"files", "format", "run_id", "step"}
    assert set(marker) == {"files", "format", "run_id", "step", "xxh3_128", "xxh3_128_of_this"}
    for remove in (lambda: None, (saved / "lightning.json").unlink):
        remove()
        found = describe_checkpoints(saved, verify=True)
        assert found[0].problems == ()
        assert as_table(found).splitlines()[-1].strip().startswith("It has no checksums: only sizes, headers and")
        assert describe_checkpoints(saved)[0].note == ""


def test_a_marker_lists_a_checksum_of_each_file(saved):
    """Of every file that it lists, those in folders too."""
    marker = read_marker(saved)
    assert {name: checksum(saved / name) for name in marker.files} == marker.checksums
    assert len(marker.files) == 8


def test_each_node_reads_the_files_of_its_ranks(tmp_path):
    """By the numbers in their names; the rest are rank 0's, which takes over what the others have made."""
    names = ["__0_0.distcp", "__3_1.distcp", "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt", "rng_state_3.pth"]
    names += ["rng_state_1.pth", "model.safetensors"]
    for name in names:
        (tmp_path / name).write_text(name)
    others = checksums_of(tmp_path, ranks=range(2, 4))
    assert sorted(others) == sorted(names[1:4])
    found = checksums_of(tmp_path, known=dict.fromkeys(others, "another's"))
    assert sorted(found) == sorted(names)
    assert [name for name in sorted(found) if found[name] == "another's"] == sorted(names[1:4])
