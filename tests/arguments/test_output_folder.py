"""The output folder: who makes it, what is saved there, and how many checkpoints stay."""

import pytest

from hf_compat import TrainingArguments
from hf_compat.arguments.derived import checkpoints_kept, folder_or_default, make_output_folder
from hf_compat.errors import OutputFolderError

SECOND_RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def second_rank(monkeypatch):
    """Make this process one that writes no files."""
    for name, value in SECOND_RANK.items():
        monkeypatch.setenv(name, value)


def test_the_folder_is_made(tmp_path):
    """With those above it; one that is there stays."""
    args = TrainingArguments(str(tmp_path / "a" / "b"), use_cpu=True)
    make_output_folder(args)
    make_output_folder(args)
    assert (tmp_path / "a" / "b").is_dir()


def test_other_ranks_make_none(tmp_path, second_rank):
    """A process that writes no files leaves the disk alone, and deletes no checkpoint."""
    args = TrainingArguments(str(tmp_path / "a"), use_cpu=True, save_total_limit=2)
    make_output_folder(args)
    assert list(tmp_path.iterdir()) == []
    assert checkpoints_kept(args) is None


def test_a_file_is_in_the_way(tmp_path):
    """The error names the field, its value and the remedy."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputFolderError, match=r"`output_dir='.*file.*'`: .* Remove the file"):
            make_output_folder(TrainingArguments(str(path), use_cpu=True))


def test_the_default_is_read_when_it_is_asked_for():
    """Without a folder it is the field's, which may have been assigned since."""
    args = TrainingArguments("first", use_cpu=True)
    assert folder_or_default(args, "other") == "other"
    args.output_dir = "second"
    assert folder_or_default(args, None) == "second"


@pytest.mark.parametrize(("limit", "kept"), [(None, None), (0, None), (1, 1), (3, 3)])
def test_checkpoints_that_stay(limit, kept):
    """A limit of 0 is none, as without one."""
    args = TrainingArguments("out", use_cpu=True)
    args.save_total_limit = limit
    assert checkpoints_kept(args) == kept
