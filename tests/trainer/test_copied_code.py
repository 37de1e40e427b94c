"""Code that libraries copied from transformers' Trainer, and loops of one's own, find here what they find there."""

import copy
import os
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

import hf_compat
from hf_compat import TrainerCallback
from hf_compat.arguments.deepspeed import DeepSpeedPlugin, HfTrainerDeepSpeedConfig
from hf_compat.errors import TrainerSetupError
from tests.support import helpers, trainers
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.trainers import QUIET, arguments

trainer_of = partial(trainers.new_trainer, max_steps=1, save_strategy="no", per_device_train_batch_size=4)

transformers = pytest.importorskip("transformers")

OLD = transformers.__version__.startswith("4.")
LIBRARIES = [pytest.param(transformers, id="transformers"), pytest.param(hf_compat, id="hf_compat")]


# ---- the keywords of overrides ----


def shown(value):
    """What a test compares of an argument: plain values as they are, of others the kind."""
    if isinstance(value, str):
        return "folder" if os.sep in value else value
    return value if value is None or isinstance(value, bool | int) else type(value).__name__.removesuffix("WithLoss")


def recorded(calls, name, function):
    """Return ``function``, each call of which is noted in ``calls``."""

    def call(*given, **named):
        calls.append((name, [shown(value) for value in given], {key: shown(value) for key, value in named.items()}))
        return function(*given, **named)

    return call


def calls_of(library, folder):
    """Train, evaluate, predict and save a small T5, in which all that may be overridden notes its arguments."""
    calls = []
    model = helpers.t5()
    tokenizer = helpers.tokenizer()
    rows = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "labels": [2, 3]}] * 4
    args = library.Seq2SeqTrainingArguments(
        str(folder),
        **QUIET,
        max_steps=1,
        save_steps=1,
        eval_steps=1,
        eval_strategy="steps",
        predict_with_generate=True,
        generation_max_length=3,
    )
    trainer = library.Seq2SeqTrainer(
        model,
        args,
        data_collator=recorded(calls, "collator", transformers.default_data_collator),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer,
        compute_metrics=recorded(calls, "metrics", lambda prediction: {}),
        preprocess_logits_for_metrics=recorded(calls, "logits", lambda logits, labels: logits),
    )
    for name in ("save_model", "_save", "create_optimizer", "create_scheduler", "compute_loss", "prediction_step"):
        setattr(trainer, name, recorded(calls, name, getattr(trainer, name)))
    for name in ("save_pretrained", "generate"):
        setattr(model, name, recorded(calls, name, getattr(model, name)))
    tokenizer.save_pretrained = recorded(calls, "tokenizer", tokenizer.save_pretrained)
    trainer.train()
    trainer.predict(rows)
    args.predict_with_generate = False
    trainer.evaluate()
    trainer.save_model(str(folder / "saved"))
    return calls


def test_keywords_of_overrides_are_upstreams(tmp_path):
    """Each override gets what it gets from transformers, of the installed release, by position and by name."""
    theirs, ours = (calls_of(library, tmp_path / library.__name__) for library in (transformers, hf_compat))
    assert ours == theirs
    saved = next(named for name, _, named in ours if name == "save_pretrained")
    assert saved == {"state_dict": None, **({"safe_serialization": True} if OLD else {"is_main_process": True})}


@pytest.mark.skipif(not OLD, reason="transformers 5 saves safetensors only")
def test_another_default_of_save_pretrained_has_no_effect(tmp_path):
    """A model whose `save_pretrained` saves pickles by default is saved as `save_safetensors` says."""

    class OldDefault(type(helpers.t5())):
        def save_pretrained(self, folder, state_dict=None, safe_serialization=False, **more):
            super().save_pretrained(folder, state_dict=state_dict, safe_serialization=safe_serialization, **more)

    trainer = trainer_of(tmp_path, library=hf_compat, model=OldDefault(helpers.t5().config))
    trainer.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "model.safetensors").exists()


# ---- special tokens ----


class HasTokens:
    """A processing class with special tokens, which is neither a tokenizer nor a processor of transformers."""

    eos_token_id, bos_token_id, pad_token_id = 5, 6, 7

    def save_pretrained(self, folder):
        raise AssertionError("nothing is saved")


@pytest.mark.parametrize("library", LIBRARIES)
def test_special_tokens_of_other_processing_classes_are_left_alone(library, tmp_path):
    """Only tokenizers and processors of transformers change a model's special tokens; an override is not called."""

    class Counts(library.Trainer):
        def _align_special_tokens(self):
            raise AssertionError("called for a processing class of one's own")

    model = helpers.bert_classifier()
    before = {name: getattr(model.config, name) for name in ("eos_token_id", "bos_token_id", "pad_token_id")}
    args = arguments(tmp_path, library, max_steps=1, save_strategy="no")
    rows = [{"input_ids": [1, 2], "labels": 0}] * 2
    Counts(model, args, train_dataset=rows, processing_class=HasTokens()).train()
    assert {name: getattr(model.config, name) for name in before} == before


# ---- the model's memory ----


@pytest.mark.parametrize("library", LIBRARIES)
def test_there_is_no_past_outside_of_a_pass(library, tmp_path):
    """A copied loop deletes `_past` if there is one; without `past_index` there never is."""
    seen = []

    class Copied(library.Trainer):
        def training_step(self, *args, **kwargs):
            seen.append(hasattr(self, "_past"))
            return super().training_step(*args, **kwargs)

    trainer = trainer_of(tmp_path, kind=Copied, library=library)
    seen.append(hasattr(trainer, "_past"))
    trainer.train()
    trainer.evaluate()
    assert [*seen, hasattr(trainer, "_past")] == [False, False, False]


# ---- what is prepared ----

LISTS = ("_models", "_optimizers", "_schedulers", "_dataloaders")


def prepared_at_each_point(library, folder):
    """Return what the accelerator has prepared before, in and after an evaluation and two trainings."""
    seen = []

    def note(when):
        accelerator, handler = trainer.accelerator, trainer.callback_handler
        known = [trainer.model, trainer.optimizer, handler.train_dataloader, handler.eval_dataloader]
        names = ["model", "optimizer", "train", "eval"]
        of = lambda item: next((name for name, one in zip(names, known, strict=True) if one is item), "other")  # noqa: E731
        seen.append((when, [[of(item) for item in getattr(accelerator, name)] for name in LISTS]))

    class Notes(TrainerCallback):
        def on_train_begin(self, *args, **kwargs):
            note("train begin")

        def on_step_end(self, *args, **kwargs):
            note("step")

        def on_prediction_step(self, *args, **kwargs):
            note("evaluation")

        def on_train_end(self, *args, **kwargs):
            note("train end")

    trainer = trainer_of(folder, library=library, eval_strategy="epoch")
    trainer.add_callback(Notes())
    note("made")
    for call in (trainer.evaluate, trainer.train, trainer.evaluate, trainer.train):
        call()
        note(call.__name__)
    return seen


def test_what_the_accelerator_has_prepared(tmp_path):
    """Its lists hold upstream's at each point: the model once it is used, the optimizer in a training, each loader."""
    ours = prepared_at_each_point(hf_compat, tmp_path)
    assert ours[0] == ("made", [[], [], [], []])
    assert ours[1] == ("evaluation", [["model"], [], [], ["eval"]])
    assert dict(ours)["train end"] == [["model"], ["optimizer"], [], ["train", "eval"]]
    assert ours == prepared_at_each_point(transformers, tmp_path)


def test_shared_state_of_the_accelerator(tmp_path):
    """It is the dict that all of accelerate's `AcceleratorState` share, with this run's values."""
    state = pytest.importorskip("accelerate.state")
    found = trainer_of(tmp_path, library=hf_compat).accelerator.state._shared_state
    assert found is state.AcceleratorState._shared_state
    assert (found["device"], found["num_processes"]) == (torch.device("cpu"), 1)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_copied_evaluation_loop_keeps_all_samples(library, tmp_path):
    """In the last window of an epoch too: the loader whose last batch is cut off is the one that the loop reads."""
    counts = []

    class Copied(library.Trainer):
        def evaluation_loop(self, dataloader, description, *args, metric_key_prefix="eval", **kwargs):
            model = self.model
            if len(self.accelerator._models) == 0 and model is self.model:
                model = self.accelerator.prepare_model(model, evaluation_mode=True)
            gathered = [self.accelerator.gather_for_metrics(batch["features"]) for batch in dataloader]
            counts.append([len(each) for each in gathered])
            return transformers.trainer_utils.EvalLoopOutput(None, None, {}, 7)

    rows = ListDataset(vector_rows(7))
    fields = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 3}
    trainer = trainer_of(tmp_path, kind=Copied, library=library, train_dataset=rows, **fields)
    trainer.evaluate()
    trainer.train()
    assert counts == [[3, 3, 1]] * 3


def test_arguments_reach_a_deepspeed_config(tmp_path):
    """A trainer of transformers 4 that calls `propagate_args_to_deepspeed` fills in what is "auto"."""
    trainer = trainer_of(tmp_path, library=hf_compat)
    with pytest.raises(TrainerSetupError, match=r"`propagate_args_to_deepspeed`: .* Set `deepspeed`"):
        trainer.propagate_args_to_deepspeed()
    config = HfTrainerDeepSpeedConfig({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}})
    trainer.accelerator.state.deepspeed_plugin = DeepSpeedPlugin(config)
    trainer.propagate_args_to_deepspeed()
    assert trainer.accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] == 4


ZERO_2 = {
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.5}},
    "zero_optimization": {"stage": 2},
}


@pytest.mark.skipif(not OLD, reason="transformers 5 has no such method")
@pytest.mark.parametrize("searches", [False, True], ids=["as given", "a size that is looked for"])
@pytest.mark.parametrize("given", ["auto", 4, 3], ids=["auto", "the same", "another"])
def test_a_deepspeed_config_has_transformers_values(given, searches, tmp_path):
    """What `propagate_args_to_deepspeed` writes is what transformers' writes, and both call a contradiction one."""
    pytest.importorskip("deepspeed")
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig as TheirConfig

    fields = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 0.125}
    found = []
    for library, kind in ((transformers, TheirConfig), (hf_compat, HfTrainerDeepSpeedConfig)):
        trainer = trainer_of(tmp_path, library=library, **fields)
        config = kind({**copy.deepcopy(ZERO_2), "train_micro_batch_size_per_gpu": given})
        plugin = SimpleNamespace(hf_ds_config=config, deepspeed_config=config.config)
        state = SimpleNamespace(deepspeed_plugin=plugin)
        trainer.accelerator = SimpleNamespace(state=state)
        trainer.propagate_args_to_deepspeed(auto_find_batch_size=searches)
        found.append((plugin.hf_ds_config.config, len(plugin.hf_ds_config.mismatches)))
    assert found[0] == found[1]


# ---- a loop of one's own ----


class Stops(TrainerCallback):
    """Saves after the second update step, and stops after the third."""

    def __init__(self):
        self.events = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.events.append(("begin", sorted(name for name, value in kwargs.items() if value is not None)))

    def on_step_end(self, args, state, control, **kwargs):
        self.events.append(("step", state.global_step))
        control.should_save = state.global_step == 2
        control.should_training_stop = state.global_step == 3
        return control

    def on_save(self, args, state, control, **kwargs):
        self.events.append(("save", control.should_save))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.events.append(("log", logs["loss"], control.should_log))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_loop_of_ones_own(library, tmp_path):
    """Handler, state, control and flow are enough for a loop without a Trainer, which finds its checkpoint again."""
    ours = library is hf_compat
    handler_of = library.CallbackHandler if ours else transformers.trainer_callback.CallbackHandler
    find = library.get_last_checkpoint if ours else transformers.trainer_utils.get_last_checkpoint
    model = PlainModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    args = arguments(tmp_path, library, logging_steps=2, save_strategy="no", max_steps=9)
    callback = Stops()
    handler = handler_of([library.DefaultFlowCallback, callback], model, None, optimizer, None)
    state, control = library.TrainerState(), library.TrainerControl()
    state.max_steps, state.logging_steps, state.is_world_process_zero = 9, args.logging_steps, True
    handler.train_dataloader = DataLoader(ListDataset(vector_rows(8)), 2, collate_fn=hf_compat.default_data_collator)
    control = handler.on_train_begin(args, state, control)
    for batch in handler.train_dataloader:
        control = handler.on_step_begin(args, state, control)
        model(**batch)["loss"].backward()
        optimizer.step()
        state.global_step += 1
        control = handler.on_step_end(args, state, control)
        if control.should_log:
            state.log_history.append({"loss": 1.0, "step": state.global_step})
            control = handler.on_log(args, state, control, {"loss": 1.0})
        if control.should_save:
            folder = tmp_path / f"checkpoint-{state.global_step}"
            folder.mkdir()
            torch.save(model.state_dict(), folder / "weights.bin")
            state.save_to_json(str(folder / "state.json"))
            control = handler.on_save(args, state, control)
        if control.should_training_stop:
            break
    handler.on_train_end(args, state, control)
    given = ["model", "optimizer", "train_dataloader"]
    assert callback.events == [
        ("begin", given),
        ("step", 1),
        ("step", 2),
        ("log", 1.0, False),
        ("save", False),
        ("step", 3),
    ]
    assert find(str(tmp_path)) == str(tmp_path / "checkpoint-2")
    again = library.TrainerState.load_from_json(str(tmp_path / "checkpoint-2" / "state.json"))
    assert (again.global_step, again.log_history) == (2, [{"loss": 1.0, "step": 2}])
