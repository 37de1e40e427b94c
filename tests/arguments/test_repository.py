"""The repository on the Hub that the fields name."""

from pathlib import Path

import pytest

from hf_compat.arguments.derived import HubRepository, card_name, hub_repository, path_of_checkpoint, pushes_checkpoints
from tests.support.trainers import arguments


def test_a_repository_is_named_as_the_output_folder():
    """Without ``hub_model_id`` the name is the last of the folder's path, that of ``.`` too; all else is None."""
    assert hub_repository(arguments("runs/mine")) == HubRepository("mine", None, None, None)
    assert hub_repository(arguments(".")).name == Path.cwd().name


def test_what_is_passed_comes_before_the_fields():
    """Token, branch and privacy are the fields', unless the call has its own; False is one."""
    args = arguments("runs/mine", hub_model_id="me/other", hub_token="t", hub_revision="dev", hub_private_repo=True)
    assert hub_repository(args) == HubRepository("me/other", "t", "dev", True)
    given = hub_repository(args, token="u", revision="main", private=False)
    assert given == HubRepository("me/other", "u", "main", False)


def test_name_in_the_card(monkeypatch):
    """It has no owner; a process that writes no files has none."""
    assert card_name(arguments("runs/mine")) == "mine"
    assert card_name(arguments("runs/mine", hub_model_id="me/other")) == "other"
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert card_name(arguments("runs/mine")) is None


@pytest.mark.parametrize(
    ("strategy", "pushes", "path"),
    [
        ("end", False, None),
        ("every_save", True, None),
        ("checkpoint", True, "last-checkpoint"),
        ("all_checkpoints", True, "checkpoint-3"),
    ],
)
def test_strategies(strategy, pushes, path):
    """Each strategy but the first pushes after a save; two of them the checkpoint too, to a folder of its own."""
    args = arguments("runs/mine", hub_strategy=strategy)
    assert pushes_checkpoints(args, is_pushing=False) == pushes
    assert path_of_checkpoint(args, "checkpoint-3") == path


def test_a_push_while_another_is_not_done():
    """It waits for the next save, unless ``hub_always_push`` is set; the strategy still decides."""
    assert not pushes_checkpoints(arguments("runs/mine"), is_pushing=True)
    assert pushes_checkpoints(arguments("runs/mine", hub_always_push=True), is_pushing=True)
    assert not pushes_checkpoints(arguments("runs/mine", hub_always_push=True, hub_strategy="end"), is_pushing=True)
