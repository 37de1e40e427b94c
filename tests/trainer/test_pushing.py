"""Pushes to the Hub: the same commits as transformers', and a training that no Hub can stop."""

import json
import logging
import os
import re
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version

import hf_compat
from hf_compat.errors import HubError
from tests.support.held_writer import HeldWriter
from tests.support.helpers import ListDataset, PadCollator, gpt2, token_rows, tokenizer
from tests.support.hub_server import OWNER, TOKEN, local_hub
from tests.support.parity import clean_process, compare

__all__ = ["local_hub"]

pytestmark = [
    # huggingface_hub's own way of sending large files.
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
    # transformers 4.57 on checkpoints that follow one another quickly.
    pytest.mark.filterwarnings("ignore:mtime may not be reliable:UserWarning"),
]

LIBRARIES = (transformers, hf_compat)
SECRET = TOKEN.encode()
SETTINGS = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
STEPS = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "logging_steps": 2}


def pushing_trainer(library, folder, *, waits=True, callbacks=(), **fields):
    """Return a Trainer of ``library`` that pushes to ``tester/out``; ``waits``: until each push has ended."""

    class Wait(library.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            trainer._finish_current_push()

    torch.manual_seed(0)
    given = {**SETTINGS, **STEPS, "push_to_hub": True, "hub_token": TOKEN, **fields}
    trainer = library.Trainer(
        gpt2(),
        library.TrainingArguments(str(folder / "out"), **given),
        data_collator=PadCollator(),
        train_dataset=ListDataset(token_rows(32)),
        processing_class=tokenizer(),
        callbacks=[Wait(), *callbacks] if waits else list(callbacks),
    )
    return trainer


def content(path, data):
    """Return what of a file the two libraries have in common."""
    if path.endswith(".json") and "trainer_state" not in path:
        return json.loads(data)
    return data if path.endswith(".safetensors") else "present"


def told(hub):
    """Return the commits for comparison, without the files that only we write."""
    return [
        {
            "where": (commit.repo, commit.revision),
            "message": commit.message,
            "token": commit.token,
            "files": {path: content(path, data) for path, data in commit.files.items() if "lightning." not in path},
        }
        for commit in hub.commits
    ]


def script(library, folder, **fields):
    """Train, save and push as the example scripts do."""
    with clean_process():
        trainer = pushing_trainer(library, folder, **fields)
        trainer.train()
        trainer.save_model()
        return trainer.push_to_hub(tags="mine", dataset="rows")


@pytest.mark.parametrize(
    "fields",
    [
        {"hub_strategy": "end"},
        {"hub_strategy": "every_save"},
        {"hub_strategy": "checkpoint", "hub_model_id": "club/model", "hub_private_repo": True},
        # Without a limit: a checkpoint that transformers rotates away while a push lists the folder ends that push.
        {"hub_strategy": "all_checkpoints", "hub_revision": "draft"},
        {"hub_strategy": "every_save", "save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2},
    ],
    ids=["end", "every_save", "checkpoint", "all_checkpoints", "by epoch"],
)
def test_commits_are_upstreams(local_hub, tmp_path, fields):
    """Each strategy makes the repository and the commits that transformers makes: order, messages, branch, files."""
    made = {}
    for library in LIBRARIES:
        local_hub.branches[f"{OWNER}/out"] = {"main", "draft"}
        commit = script(library, tmp_path / library.__name__, **fields)
        assert commit.commit_message == "End of training"
        assert commit.oid == f"{len(local_hub.commits):040x}"
        made[library] = (told(local_hub), dict(local_hub.repos))
        local_hub.commits.clear()
        local_hub.repos.clear()
        local_hub.branches.clear()
    (expected, repos), (actual, our_repos) = made[transformers], made[hf_compat]
    assert our_repos == repos
    assert [entry["message"] for entry in actual] == [entry["message"] for entry in expected]
    assert list(compare(expected, actual, "commits")) == []


def test_everything_is_sent_but_tokens_and_folders_being_written(local_hub, tmp_path):
    """No file pushed or kept holds the token; hidden folders and ``_`` files stay; nothing is left behind."""
    out = tmp_path / "out"
    for name in (".checkpoint-9.partial-host-1-00000000/x", "_private/x", "runs/x", "checkpoint-9/x"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    script(hf_compat, tmp_path, hub_strategy="all_checkpoints")
    pushed = {path for commit in local_hub.commits for path in commit.files}
    assert {path for path in pushed if path.endswith("/x")} == {"runs/x"}
    assert {path.split("/")[0] for path in pushed if path.startswith("checkpoint-")} == {"checkpoint-2", "checkpoint-4"}
    assert "checkpoint-4/lightning.json" in pushed
    assert not any(SECRET in data for commit in local_hub.commits for data in commit.files.values())
    assert not any(SECRET in path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert not list(out.glob(".*.pushed-*"))
    assert any("hf_compat/" in agent for agent in local_hub.agents)
    args = torch.load(out / "training_args.bin", weights_only=False)
    assert (args.hub_token, args.push_to_hub) == (None, True)
    assert args.to_dict()["hub_token"] == "<HUB_TOKEN>"


class Gate:
    """Hold commits back until training has ended."""

    def __init__(self, hub):
        self.hub = hub

    def callback(self):
        hub = self.hub

        class Open(hf_compat.TrainerCallback):
            def on_train_begin(self, args, state, control, **kwargs):
                hub.gate.clear()

            def on_train_end(self, args, state, control, **kwargs):
                hub.gate.set()

        return Open()


@pytest.mark.parametrize(("always", "steps"), [(False, [1]), (True, [1, 2, 3])], ids=["skipped", "always pushed"])
def test_a_push_under_way(local_hub, tmp_path, always, steps):
    """A save during a push is not pushed, or queued; what is pushed is what was saved, though it was rotated away."""
    trainer = pushing_trainer(
        hf_compat,
        tmp_path,
        waits=False,
        callbacks=[Gate(local_hub).callback()],
        hub_strategy="all_checkpoints",
        hub_always_push=always,
        save_steps=1,
        max_steps=3,
        save_total_limit=1,
        learning_rate=0.1,
    )
    trainer.train()
    assert [commit.message for commit in local_hub.commits] == [
        f"Training in progress, step {step}{what}" for step in steps for what in ("", ", checkpoint")
    ]
    weights = [
        next(data for path, data in commit.files.items() if path.endswith("model.safetensors"))
        for commit in local_hub.commits
    ]
    assert weights[::2] == weights[1::2]
    assert len(set(weights)) == len(steps)
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (lambda hub: setattr(hub, "fails", lambda method, path: 500 if "/commit/" in path else None), "500"),
        (lambda hub: setattr(hub, "fails", lambda method, path: 401 if "/preupload/" in path else None), "401"),
        (lambda hub: hub.branches[f"{OWNER}/out"].clear(), "404"),
        # The Hub's client is shared: a push that begins again closes it under one that is under way.
        (lambda hub: hub.stop(), "[Cc]onnect|client has been closed|has no attribute 'request'"),
    ],
    ids=["server error", "token", "branch", "no connection"],
)
def test_training_goes_on_without_a_hub(local_hub, tmp_path, caplog, failure, reason):
    """A push that fails is a warning that names the reason, ends no training and leaves the checkpoints as they are."""

    class Save(hf_compat.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 1:
                trainer.save_model()

    always = {"hub_strategy": "checkpoint", "hub_always_push": True}  # a slow failure keeps no push from being tried
    trainer = pushing_trainer(hf_compat, tmp_path, callbacks=[Save()], **always)
    failure(local_hub)
    with caplog.at_level(logging.WARNING, "hf_compat"):
        assert trainer.train().global_step == 4
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("hf_compat")]
    # One of ``save_model``, two of each of the two saves; a push that still retries may stand for one that comes after.
    assert 3 <= len(warnings) <= 5
    assert all(
        re.search(reason, text) and f"`{OWNER}/out`" in text and "Training continues" in text for text in warnings
    )
    assert all(job.exception() is not None for job in trainer.push_in_progress.jobs)
    assert hf_compat.Trainer._finish_current_push(trainer) is None
    assert {"checkpoint-2", "checkpoint-4"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert not list((tmp_path / "out").glob(".*"))
    with pytest.raises(HubError, match=f"`{OWNER}/out`"):
        trainer.push_to_hub()
    assert (tmp_path / "out" / "README.md").is_file()
    assert TOKEN not in caplog.text


def test_a_push_that_cannot_be_prepared(local_hub, tmp_path, caplog):
    """What goes wrong before the upload, such as a folder in a file's place, is a warning as well."""
    trainer = pushing_trainer(hf_compat, tmp_path)
    (tmp_path / "out" / "model.safetensors").mkdir(parents=True)
    assert trainer.train().global_step == 4
    assert caplog.text.count("was not pushed to the Hub") == 2
    assert not local_hub.commits


@pytest.mark.parametrize("failure", ["refused", "unreachable", "wrong token"])
def test_a_repository_that_cannot_be_made_is_an_error(local_hub, tmp_path, failure):
    """Before training starts, the Trainer says what cannot be reached or made, and writes nothing."""
    if failure == "unreachable":
        local_hub.stop()
    elif failure == "refused":
        local_hub.fails = lambda method, path: 403
    token = "hf_other" if failure == "wrong token" else TOKEN
    with pytest.raises(HubError, match=f"`out` cannot be created on {local_hub.url}.*`hub_token`") as raised:
        pushing_trainer(hf_compat, tmp_path, hub_token=token)
    assert token not in str(raised.value)
    assert isinstance(raised.value, OSError)
    assert not (tmp_path / "out").exists()


def test_push_by_hand(local_hub, tmp_path):
    """Without ``push_to_hub`` the method makes the repository; not blocking it returns a future of the commit."""
    trainer = pushing_trainer(hf_compat, tmp_path, push_to_hub=False, hub_token=None, max_steps=1)
    assert trainer.hub_model_id is None
    trainer.model.model_tags = ["odd", "mine"]
    future = trainer.push_to_hub("by hand", blocking=False, token=TOKEN, private=True, tags="mine", model_name="Name")
    assert future.result().commit_message == "by hand"
    (commit,) = local_hub.commits
    assert trainer.hub_model_id == commit.repo == f"{OWNER}/out"
    assert local_hub.repos[commit.repo].get("visibility", "private") == "private"
    assert {"README.md", "model.safetensors", "tokenizer.json", "training_args.bin"} <= commit.files.keys()
    card = commit.files["README.md"].decode()
    assert "# Name\n" in card
    assert "tags:\n- mine\n- odd\n- generated_from_trainer\n" in card


def test_callbacks_are_told_before_a_push(local_hub, tmp_path):
    """``on_push_begin`` comes before each push, as in transformers 5."""
    seen = []

    class Note(hf_compat.TrainerCallback):
        def on_push_begin(self, args, state, control, **kwargs):
            seen.append((state.global_step, len(local_hub.commits)))

    trainer = pushing_trainer(hf_compat, tmp_path, callbacks=[Note()])
    trainer.train()
    trainer.push_to_hub()
    told_of = Version(transformers.__version__) >= Version("5")
    assert seen == ([(2, 0), (4, 1), (4, 2)] if told_of else [])


def test_checkpoints_written_in_the_background_are_pushed_once_they_are_there(local_hub, tmp_path):
    """With ``save_async`` the commits have the update steps saved, complete, though the training is further on."""
    trainer = pushing_trainer(
        hf_compat, tmp_path, waits=False, save_async=True, hub_always_push=True, hub_strategy="all_checkpoints"
    )
    trainer.train()
    assert [commit.message for commit in local_hub.commits] == [
        f"Training in progress, step {step}{what}" for step in (2, 4) for what in ("", ", checkpoint")
    ]
    for step, commit in zip((2, 4), local_hub.commits[1::2], strict=True):
        assert json.loads(commit.files[f"checkpoint-{step}/trainer_state.json"])["global_step"] == step
        assert f"checkpoint-{step}/lightning.json" in commit.files
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("save_async", [False, True], ids=["synchronously", "in the background"])
def test_a_checkpoint_is_pushed_from_where_its_save_began(local_hub, tmp_path, monkeypatch, save_async):
    """A run that changes the working directory pushes each checkpoint from the relative ``output_dir`` of its save."""

    class Moves(hf_compat.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 3:
                os.chdir(tmp_path / "elsewhere")

    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    trainer = pushing_trainer(
        hf_compat,
        Path(),
        waits=False,
        callbacks=[Moves()],
        save_async=save_async,
        hub_always_push=True,
        hub_strategy="all_checkpoints",
    )
    trainer.checkpoint_writer = HeldWriter()
    trainer.train()
    steps = [f"step {step}{what}" for step in (2, 4) for what in ("", ", checkpoint")]
    assert sorted(commit.message for commit in local_hub.commits) == [f"Training in progress, {step}" for step in steps]
    for name, step in (("here", 2), ("elsewhere", 4)):
        found = {path.name for path in (tmp_path / name / "out").iterdir()}
        assert {"model.safetensors", "training_args.bin", f"checkpoint-{step}"} <= found
        assert not [entry for entry in found if entry.startswith(".") or entry == f"checkpoint-{6 - step}"]


def test_an_override_that_follows_a_save_is_waited_for(local_hub, tmp_path):
    """Written in the background, a checkpoint that a subclass pushes by itself holds up training until it has."""
    seen = []

    class PushesItself(hf_compat.Trainer):
        def _push_from_checkpoint(self, checkpoint_folder):
            seen.append((Path(checkpoint_folder).name, self.state.global_step))
            super()._push_from_checkpoint(checkpoint_folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_compat, "Trainer", PushesItself)
        trainer = pushing_trainer(hf_compat, tmp_path, waits=False, save_async=True, save_steps=1)
    trainer.checkpoint_writer = HeldWriter()
    trainer.train()
    assert seen == [(f"checkpoint-{step}", step) for step in (1, 2, 3, 4)]


@pytest.mark.parametrize("failure", ["offline", "refused", "wrong name"])
def test_a_failure_is_of_the_class_that_transformers_raises(local_hub, tmp_path, monkeypatch, failure):
    """What catches huggingface_hub's error, and asks for its response, does so with ours."""
    fields = {"hub_model_id": "a//b"} if failure == "wrong name" else {}
    if failure == "offline":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    elif failure == "refused":
        local_hub.fails = lambda method, path: 403
    raised = []
    for library in LIBRARIES:
        with pytest.raises(Exception) as found, clean_process():  # noqa: PT011 - which class it is, is the question
            pushing_trainer(library, tmp_path, **fields)
        raised.append(found.value)
    theirs, ours = raised
    assert isinstance(ours, HubError)
    assert isinstance(ours, type(theirs))
    assert getattr(ours, "response", None) is getattr(ours.__cause__, "response", None)
