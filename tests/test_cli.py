"""``hf-compat`` without arguments: a page of what it can do."""

import re
import shlex

import pytest

from hf_compat import cli


def test_the_page_names_each_command_once(capsys):
    """Each command has a line, with an example whose options are known; the exit status is 0."""
    assert cli.main([]) == 0
    page = capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    (known,) = re.findall(r"\{([\w,]+)\}", capsys.readouterr().out.split("commands:")[1])[:1]
    examples = [shlex.split(line.split("  ")[1]) for line in page.splitlines() if line.startswith("  hf-compat ")]
    assert sorted(words[1] for words in examples) == sorted(known.split(","))
    for words in examples:
        with pytest.raises(SystemExit) as ended:
            cli.main([words[1], "--help"])
        assert ended.value.code == 0
    assert max(len(line) for line in page.splitlines()) <= 120
