"""The host memory that a save takes at most."""

import json
from pathlib import Path

import pytest

from tests.support.paths import SCRIPTS
from tests.support.processes import forked

SLACK = 16 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is counted by Linux")
@pytest.mark.parametrize(("words", "copies"), [((), 0), (("async",), 1)], ids=["synchronous", "background"])
def test_most_memory_of_a_save(words, copies, tmp_path):
    """A synchronous save writes the tensors from where they lie; one in the background copies what its files hold."""
    ended = forked(SCRIPTS / "save_memory_script.py", tmp_path, *words)
    assert ended.code == 0, ended.output
    without, *later = json.loads(next(line for line in ended.output.splitlines() if line.startswith("[")))
    written = sum(path.stat().st_size for path in (tmp_path / "checkpoint-3").iterdir())
    assert written > 190 << 20
    assert max(later) - without < copies * written + SLACK
    assert max(later) - without >= copies * written - SLACK
