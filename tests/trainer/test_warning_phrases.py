"""What transformers warns of, ours does too, with the phrase that people search for: in the log or as a warning.

Rows of ``training_args.py``, ``trainer.py`` and what they call, of both releases, in their order, without those that
need an accelerator, several processes, DeepSpeed, a tracker or Liger, and without those that are an error of ours.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as library_logging

from hf_compat.errors import is_installed
from tests.support.helpers import (
    ListDataset,
    PadCollator,
    PlainModel,
    Stream,
    bert_classifier,
    gpt2,
    labelled_rows,
    token_rows,
    tokenizer,
    vector_rows,
)
from tests.support.phrases import LIBRARIES, rows_of_this_release, trainer, variables_taken_back

ROWS = ListDataset(vector_rows(4))
STEPS = {"max_steps": 1, "per_device_train_batch_size": 2}
LABELLED = {"train_dataset": ListDataset(labelled_rows(8)), "data_collator": PadCollator()}
SAVES = {**STEPS, "save_strategy": "steps", "save_steps": 1}


@dataclass(frozen=True)
class Row:
    """One warning.

    Attributes:
        phrase: What both messages have.
        fields: Training arguments.
        then: What to do with the library and the arguments; by default nothing more.
        kind: The category of upstream's warning; None if it is in the log, and ours in either.
        since: The first release with it.
        until: The first release without it.
        needs: A package without which upstream does not come to it.
    """

    phrase: str
    fields: dict[str, Any] = field(default_factory=dict)
    then: Callable[[Any, Any], object] | None = None
    kind: type[Warning] | None = None
    since: str = "4.57"
    until: str = "6"
    needs: str | None = None


def old(name: str, value: Any, *, kind: type[Warning] | None = FutureWarning, **more: Any) -> Row:
    """Return the row of a field that 4.57 deprecated, beside ``more``."""
    return Row(name, {name: value, **more}, lambda library, args: args.train_batch_size, kind, until="5.0")


def several_labels(library: Any, args: Any) -> None:
    model = bert_classifier()
    model.config.problem_type = "multi_label_classification"
    library.Trainer(model, args)


def resuming(change: Callable[[Path], object], **fields: Any) -> Callable[[Any, Any], None]:
    """Return what trains, changes the checkpoint and goes on from it with other arguments."""

    def build(library: Any, args: Any) -> None:
        library.Trainer(bert_classifier(), args, **LABELLED).train()
        checkpoint = Path(args.output_dir, "checkpoint-1")
        change(checkpoint)
        for name, value in {"max_steps": 2, **fields}.items():
            setattr(args, name, value)
        again = library.Trainer(bert_classifier(), args, **LABELLED)
        again.train(resume_from_checkpoint=str(checkpoint))

    return build


def edited(name: str, **values: Any) -> Callable[[Path], object]:
    """Return what sets ``values`` in a JSON file of a checkpoint, and adds to those that are dicts."""

    def edit(checkpoint: Path) -> None:
        path = checkpoint / name
        content = json.loads(path.read_text("utf-8"))
        for key, value in values.items():
            content[key] = {**content[key], **value} if isinstance(value, dict) else value
        path.write_text(json.dumps(content), "utf-8")

    return edit


def other_weights(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    weights = load_file(path)
    weights["classifier.other"] = weights.pop("classifier.bias")
    save_file(weights, path, {"format": "pt"})


def lost_best_model(library: Any, args: Any) -> None:
    class Loses(library.TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            shutil.rmtree(state.best_model_checkpoint, ignore_errors=True)

    library.Trainer(PlainModel(), args, train_dataset=ROWS, eval_dataset=ROWS, callbacks=[Loses]).train()


def early_stopping(library: Any, args: Any) -> None:
    callback = library.EarlyStoppingCallback()
    library.Trainer(PlainModel(), args, train_dataset=ROWS, eval_dataset=ROWS, callbacks=[callback]).train()


def early_stopping_of(metrics: dict[str, float]) -> Callable[[Any, Any], object]:
    """Return what tells the callback of an evaluation with ``metrics``, as a loop of one's own may."""
    return lambda library, args: library.EarlyStoppingCallback().on_evaluate(
        args, library.TrainerState(), library.TrainerControl(), metrics
    )


def without_flow(library: Any, args: Any) -> None:
    made = library.Trainer(PlainModel(), args)
    type(made.callback_handler)([], made.model, None, None, None)


def one_callback_twice(library: Any, args: Any) -> None:
    library.Trainer(PlainModel(), args).add_callback(library.PrinterCallback)


def other_tokens(library: Any, args: Any) -> None:
    given: dict[str, Any] = {"train_dataset": ListDataset(token_rows(4)), "data_collator": PadCollator()}
    model = gpt2()
    model.config.pad_token_id = 9
    library.Trainer(model, args, processing_class=tokenizer(), **given).train()


def loss_without_labels(library: Any, args: Any) -> None:
    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        assert labels is None
        return outputs.logits.sum()

    rows = ListDataset([{"input_ids": [at + 1, 5]} for at in range(4)])
    library.Trainer(bert_classifier(), args, train_dataset=rows, compute_loss_func=loss).train()


def without_mask(library: Any, args: Any) -> None:
    rows = ListDataset([{"input_ids": [at + 1, 5], "labels": [at + 1, 5]} for at in range(4)])
    library.Trainer(gpt2(), args, train_dataset=rows).train()


def ended_stream(library: Any, args: Any) -> None:
    rows: Any = iter(vector_rows(4))
    library.Trainer(PlainModel(), args, train_dataset=Stream(rows)).train()


def untraced(library: Any, args: Any) -> None:
    made = library.Trainer(PlainModel(), args)
    made.torch_jit_model_eval(made.model, None)


def not_linear(library: Any, args: Any) -> None:
    library.Trainer(bert_classifier(), args).create_optimizer()


def unknown_in_trial(library: Any, args: Any) -> None:
    made = library.Trainer(args=args, model_init=lambda: PlainModel(), train_dataset=ROWS, eval_dataset=ROWS)

    def space(trial: Any) -> dict[str, Any]:
        return {"learning_rat": trial.suggest_float("learning_rat", 0.1, 0.2)}

    made.hyperparameter_search(hp_space=space, n_trials=1, backend="optuna")


def with_old_names(library: Any, args: Any) -> None:
    class OldNames(PlainModel):
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None, **more: Any) -> None:
            assert (gradient_checkpointing_kwargs, more) == (
                {"use_reentrant": False},
                {"every_n_layers": 2, "offload": False},
            )

    library.Trainer(OldNames(), args, train_dataset=ROWS).train()


def group_of_one(library: Any, args: Any) -> None:
    where = Path(args.output_dir).as_uri() + "-group"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    try:
        assert library.TrainingArguments(args.output_dir, use_cpu=True).device
    finally:
        torch.distributed.destroy_process_group()


def placed_by_a_map(library: Any, args: Any) -> None:
    model: Any = PlainModel()
    model.hf_device_map = {"": "cpu"}
    library.Trainer(model, args)._move_model_to_device(model, args.device)


def written_at_once(library: Any, args: Any) -> None:
    for step in (1, 2):
        folder = Path(args.output_dir, f"checkpoint-{step}")
        folder.mkdir(parents=True)
        os.utime(folder, (1e9, 1e9))
    older = library.Trainer(PlainModel(), args)
    if hasattr(older, "_sorted_checkpoints"):
        older._sorted_checkpoints(output_dir=args.output_dir, use_mtime=True)
    else:
        import_module("transformers.trainer_utils").sort_checkpoints(args.output_dir, use_mtime=True)


def set_tokenizer(library: Any, args: Any) -> None:
    library.Trainer(PlainModel(), args).tokenizer = None


def adapters() -> Any:
    """Return a model with two active adapters."""
    peft = import_module("peft")
    settings = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(gpt2(), settings)
    model.add_adapter("other", settings)
    model.base_model.set_adapter(["default", "other"])
    return model


def two_adapters(library: Any, args: Any) -> None:
    library.Trainer(adapters(), args).save_model(f"{args.output_dir}/checkpoint-1")
    library.Trainer(adapters(), args)._load_from_checkpoint(f"{args.output_dir}/checkpoint-1")


def best_without_weights(library: Any, args: Any) -> None:
    class Loses(library.TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            Path(state.best_model_checkpoint, "model.safetensors").unlink()

    library.Trainer(PlainModel(), args, train_dataset=ROWS, eval_dataset=ROWS, callbacks=[Loses]).train()


FSDP = {"fsdp": "full_shard"}
FSDP_WRAPPED = {"fsdp": "full_shard auto_wrap"}

TABLE: dict[str, Row] = {
    # training_args.py
    "fsdp in a string": Row("Passing `fsdp` as a string is deprecated", FSDP, since="5.10"),
    "fsdp in a list": Row("Passing `fsdp` as a list is deprecated", {"fsdp": ["full_shard"]}, since="5.10"),
    "fsdp of version 1": Row(
        "FSDP1 (`fsdp_config['version'] = 1`) is deprecated", {"fsdp": True, "fsdp_config": {"version": 1}},
        since="5.10",
    ),
    "checkpointing under fsdp": Row("redundant AllGather", {**FSDP, "activation_checkpointing": True}, since="5.23"),
    "gradient_checkpointing under fsdp": Row("redundant AllGather", {**FSDP, "gradient_checkpointing": True}),
    "gradient_checkpointing under hybrid_shard": Row(
        "redundant AllGather", {"fsdp": "hybrid_shard", "gradient_checkpointing": True}, until="5.0"
    ),
    "fsdp_min_num_params": old("fsdp_min_num_params", 9, **FSDP_WRAPPED),
    "fsdp_transformer_layer_cls_to_wrap": old("fsdp_transformer_layer_cls_to_wrap", "X", **FSDP_WRAPPED),
    "set_training": Row(
        "`gradient_checkpointing` is deprecated", {},
        lambda library, args: args.set_training(gradient_checkpointing=True), kind=FutureWarning, since="5.23",
    ),
    "compiled on an old device": Row(
        "The speedups for torchdynamo mostly come with GPU Ampere or higher", {"torch_compile": True}
    ),
    "group of one process": Row(
        "torch.distributed process group is initialized, but parallel_mode != ParallelMode.DISTRIBUTED",
        then=group_of_one,
    ),
    "per_gpu_eval_batch_size": Row(
        "per_gpu_eval_batch_size", {"per_gpu_eval_batch_size": 2}, lambda library, args: args.eval_batch_size,
        until="5.0",
    ),
    "gradient_checkpointing": Row(
        "`gradient_checkpointing` is deprecated", {"gradient_checkpointing": True}, kind=FutureWarning, since="5.23"
    ),
    "no_cuda": old("no_cuda", True),
    "fp16_backend": old("fp16_backend", "cuda_amp"),
    "adafactor": old("adafactor", True),
    "torchdynamo": old("torchdynamo", "eager"),
    "push_to_hub_token": old("push_to_hub_token", "x"),
    "push_to_hub_model_id": Row(
        "push_to_hub_model_id", {"push_to_hub_model_id": "x", "push_to_hub_organization": "y"}, kind=FutureWarning,
        until="5.0",
    ),
    "push_to_hub_organization": old("push_to_hub_organization", "x"),
    "include_inputs_for_metrics": old("include_inputs_for_metrics", True, kind=None),
    "per_gpu_train_batch_size": old("per_gpu_train_batch_size", 2, kind=None),
    # trainer.py
    "old name of the model's method": Row(
        "only defines `gradient_checkpointing_enable`, which is deprecated",
        {
            **STEPS,
            "activation_checkpointing": True,
            "activation_checkpointing_kwargs": {"every_n_layers": 2, "use_reentrant": False},
        },
        with_old_names, kind=FutureWarning, since="5.23",
    ),
    "old name of processing_class": Row(
        "Trainer.tokenizer is now deprecated", {}, lambda library, args: library.Trainer(PlainModel(), args).tokenizer,
        until="5.0",
    ),
    "old name of processing_class, set": Row("Trainer.tokenizer is now deprecated", {}, set_tokenizer, until="5.0"),
    "device_map": Row("Skipping the move to device specified in `args`", {}, placed_by_a_map),
    "times of files": Row("mtime may not be reliable on this filesystem", {}, written_at_once),
    "two adapters": Row("ultiple active adapters", {}, two_adapters, needs="peft"),
    "best model without weights": Row(
        "Could not locate the best model at",
        {**SAVES, "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}, best_without_weights,
    ),
    "two models": Row(
        "`Trainer` requires either a `model` or `model_init` argument, but not both",
        then=trainer(model_init=lambda: PlainModel()), kind=FutureWarning, until="5.2",
    ),
    "tokenizer": Row(
        "`tokenizer` is deprecated", then=trainer(tokenizer=object()), kind=FutureWarning, until="5.0"
    ),
    "several labels": Row(
        "Label smoothing is not compatible with multi-label classification", {"label_smoothing_factor": 0.1},
        several_labels, kind=UserWarning,
    ),
    "copies": Row(
        "`non_blocking` is enabled but `dataloader_pin_memory` is not",
        {"accelerator_config": {"non_blocking": True}, "dataloader_pin_memory": False}, trainer(),
    ),
    "order of a stream": Row(
        "`train_sampling_strategy='group_by_length'` is ignored",
        {"train_sampling_strategy": "group_by_length", **STEPS},
        trainer(train_dataset=Stream(vector_rows(4)), call="_get_train_sampler"), since="5.4",
    ),
    "model_path": Row(
        "`model_path` is deprecated", STEPS,
        lambda library, args: library.Trainer(PlainModel(), args, train_dataset=ROWS).train(model_path=None),
        kind=FutureWarning, until="5.0",
    ),
    "special tokens": Row("The tokenizer has new PAD/BOS/EOS tokens that differ", STEPS, other_tokens),
    "not linear": Row(
        "matched but ignored", {"optim": "galore_adamw", "optim_target_modules": ["query", "attention"]}, not_linear,
        needs="galore_torch",
    ),
    "no tokens": Row(
        "Cannot get num_tokens from dataloader", {"include_tokens_per_second": True, **STEPS},
        trainer(train_dataset=ROWS, call="train"), until="5.0",
    ),
    "jit": Row("failed to use PyTorch jit mode", {"jit_mode_eval": True}, untraced, until="5.0"),
    "a trial's unknown field": Row(
        "there is no corresponding field in `TrainingArguments`", STEPS, unknown_in_trial, needs="optuna"
    ),
    "tokens of no input": Row(
        "Tried to track the number of tokens seen", {"include_num_input_tokens_seen": True, **STEPS},
        trainer(train_dataset=ROWS, call="train"),
    ),
    "tokens without a mask": Row(
        "Could not determine method to count non-padding tokens",
        {"include_num_input_tokens_seen": "non_padding", **STEPS}, without_mask,
    ),
    "loss without labels": Row(
        "`compute_loss_func` is defined but `labels=None`", {"label_names": [], **STEPS}, loss_without_labels
    ),
    "no batch": Row(
        "a single sample in your epoch_iterator, stopping training at step 0!",
        {"dataloader_drop_last": True, "max_steps": 1},
        trainer(train_dataset=ROWS, call="train"),
    ),
    "no more batches": Row(
        "stopping training at step 2!",
        {**STEPS, "max_steps": 5, "accelerator_config": {"dispatch_batches": False}}, ended_stream,
    ),
    "lost best model": Row(
        "Could not locate the best model at",
        {**SAVES, "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}, lost_best_model,
    ),
    "another release": Row(
        "You are resuming training from a checkpoint trained with", SAVES,
        resuming(edited("config.json", transformers_version="4.0.0")),
    ),
    "missing weights": Row("There were missing keys in the checkpoint", SAVES, resuming(other_weights)),
    "unexpected weights": Row("There were unexpected keys in the checkpoint", SAVES, resuming(other_weights)),
    "lost best checkpoint": Row(
        "does not exist anymore", SAVES, resuming(edited("trainer_state.json", best_model_checkpoint="checkpoint-9")),
        since="5.4",
    ),
    "other arguments": Row(
        "arguments do not match the ones in the `trainer_state.json`", SAVES,
        resuming(lambda folder: None, logging_steps=3),
    ),
    "states of no callback": Row(
        "callbacks not included in current configuration", SAVES,
        resuming(
            edited("trainer_state.json", stateful_callbacks={"Gone": {"args": {}, "attributes": {}}}),
            restore_callback_states_from_checkpoint=True,
        ),
    ),
    # trainer_callback.py
    "no flow": Row("The Trainer will not work properly", then=without_flow),
    "one callback twice": Row("You are adding a", {"disable_tqdm": True}, one_callback_twice),
    "early stopping": Row(
        "Using EarlyStoppingCallback without load_best_model_at_end=True",
        {**STEPS, "eval_strategy": "epoch", "metric_for_best_model": "loss"}, early_stopping,
    ),
    "early stopping without its metric": Row(
        "early stopping required metric_for_best_model, but did not find eval_f1",
        {"eval_strategy": "epoch", "metric_for_best_model": "f1"}, early_stopping_of({"eval_loss": 1.0}),
    ),
}  # fmt: skip


def given_by(row: Row, library: str, folder: Path, **fields: Any) -> list[warnings.WarningMessage]:
    """Return Python's warnings with the phrase of ``row``, done with ``library``'s parts and ``fields`` besides."""
    if row.needs is not None and not is_installed(row.needs):
        pytest.skip(f"needs {row.needs}")
    torch.manual_seed(0)
    library_logging.warning_once.cache_clear()  # what another test was told, this one is told too
    parts = import_module(library)
    settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    settings |= {**row.fields, **fields}
    if row.fields.keys() & {"gradient_checkpointing", "no_cuda"}:
        del settings["use_cpu"]
    with variables_taken_back(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        args = parts.TrainingArguments(str(folder), **settings)
        if row.then is not None:
            row.then(parts, args)
    return [item for item in caught if row.phrase in str(item.message)]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("row", rows_of_this_release(TABLE))
def test_warnings(row: Row, library: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both tell of it with that phrase; where upstream gives a warning, in one of that category."""
    with caplog.at_level("WARNING"):
        given = given_by(row, library, tmp_path)
    if row.kind is None:
        assert given or row.phrase in caplog.text
    else:
        assert any(issubclass(item.category, row.kind) for item in given)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["tokens of no input", "tokens without a mask", "loss without labels"])
def test_warnings_of_every_batch(name: str, library: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What upstream logs for each batch is in the log, ours once, and ``log_level`` hides it; Python warns not."""
    row = TABLE[name]
    with caplog.at_level("WARNING"):
        assert given_by(row, library, tmp_path, max_steps=2) == []
        told = [record for record in caplog.records if row.phrase in record.getMessage()]
        assert {record.levelname for record in told} == {"WARNING"}
        assert len(told) == (1 if library == "hf_compat" else 2)
        caplog.clear()
        with caplog.at_level("WARNING", logger="transformers"):  # gives its level back
            assert given_by(row, library, tmp_path, log_level="error") == []
    assert row.phrase not in caplog.text
