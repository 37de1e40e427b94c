"""Small text files: written whole, read as JSON objects."""

import pytest

from hf_compat.atomic_files import read_json_object, write_text
from hf_compat.errors import CheckpointError


def test_a_text_replaces_the_one_before(tmp_path):
    """The new text is there, and no draft of it is left."""
    path = tmp_path / "state.json"
    write_text(path, '{"name": "old"}')
    write_text(path, '{"name": "ü"}')
    assert read_json_object(path) == {"name": "ü"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_text_that_cannot_be_written_leaves_the_one_before(tmp_path):
    """An error on the way, here a character that UTF-8 lacks, costs nothing."""
    path = tmp_path / "state.json"
    write_text(path, "{}")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "{}"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"a": 1', id="cut short"),
        pytest.param(b"[1]", id="a list"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b"[" * 200_000, id="nested beyond the stack"),
    ],
)
def test_what_is_no_json_object_is_an_error_that_names_the_file(content, tmp_path):
    """Whatever is wrong, the error is a CheckpointError with the path."""
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=str(path)):
        read_json_object(path)


def test_a_missing_file_is_the_built_in_error(tmp_path):
    """Whoever looks for a file can tell that there is none from one that is damaged."""
    with pytest.raises(FileNotFoundError):
        read_json_object(tmp_path / "state.json")


def test_a_write_that_fails_leaves_no_draft(tmp_path):
    """When the file cannot be replaced the draft is removed."""
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_text(target, "text")
    assert list(tmp_path.iterdir()) == [target]
