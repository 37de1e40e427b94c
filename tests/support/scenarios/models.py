"""Models of every kind, and what the Trainer does to them."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import classifier, language_model, plain
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.updates import ACCUMULATION, train


@scenario()
def plain_module_with_a_dict(kit: Kit) -> None:
    train(kit, plain(kit, fields={"num_train_epochs": 2, "eval_strategy": "epoch"}))


@scenario()
def plain_module_with_a_tuple(kit: Kit) -> None:
    train(kit, plain(kit, fields={"num_train_epochs": 2}, model=kit.model(helpers.PlainModel, outputs="tuple")))


@scenario(warns="averages its loss over each batch", warns_since="5.0")
def encoder_decoder(kit: Kit) -> None:
    rows = helpers.translation_rows(14)
    given = {"train_dataset": helpers.ListDataset(rows), "eval_dataset": helpers.ListDataset(rows[:5])}
    fields = {**ACCUMULATION, "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    train(kit, language_model(kit, fields=fields, model=kit.model(helpers.t5), **given))


@scenario()
def bf16(kit: Kit) -> None:
    fields = {**ACCUMULATION, "bf16": True, "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    train(kit, language_model(kit, fields=fields))


@scenario(warns="`fp16=True`: .* on the CPU this run computes in float32")
def fp16_without_a_gpu(kit: Kit) -> None:
    """Training and evaluation compute in float32; no scaler is made, and none is saved."""
    fields = {**ACCUMULATION, "fp16": True, "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    train(kit, language_model(kit, fields=fields))


@scenario(warns="`fp16=True`: .* on the CPU this run computes in float32|`fp16_full_eval=True`: an evaluation before")
def fp16_evaluation_without_a_gpu(kit: Kit) -> None:
    """What is cast for an evaluation is cast, whatever the precision of training."""
    trainer = classifier(kit, fields={"fp16": True, "fp16_full_eval": True, "use_cpu": False})
    kit.evaluate(trainer)
    train(kit, trainer)


@scenario(until="5.0", warns="`fp16=True`: .* on the CPU this run computes in float32")
def backends_of_mixed_precision(kit: Kit) -> None:
    """The CPU's backend covers forward and loss, in bfloat16 for fp16 too; CUDA's covers bf16's forward alone."""
    for precision in ("fp16", "bf16"):
        for backend in ("cpu_amp", "cuda_amp"):
            fields = {precision: True, "half_precision_backend": backend, "label_smoothing_factor": 0.1}
            train(kit, classifier(kit, fields=fields))


def after_another_trainer(kit: Kit, first: dict[str, Any], then: dict[str, Any], *, trains: bool = True) -> None:
    """A model that one Trainer has trained, or evaluated, is trained by another with other arguments."""
    model = kit.model(helpers.gpt2)
    trainer = language_model(kit, model=model, fields=first)
    if trains:
        train(kit, trainer)
    else:
        kit.evaluate(trainer)
    train(kit, language_model(kit, model=model, fields=then))


@scenario(warns="has been prepared before, in another precision")
def bf16_after_float32(kit: Kit) -> None:
    """The second Trainer's forward passes are in float32, too."""
    after_another_trainer(kit, {}, {"bf16": True})


@scenario(warns="has been prepared before, in another precision")
def bf16_after_an_evaluation_in_float32(kit: Kit) -> None:
    after_another_trainer(kit, {}, {"bf16": True}, trains=False)


@scenario(warns="has been prepared before, in another precision")
def float32_after_bf16(kit: Kit) -> None:
    """The second Trainer's forward passes are in bfloat16, too."""
    after_another_trainer(kit, {"bf16": True}, {})


@scenario()
def bf16_classifier(kit: Kit) -> None:
    train(kit, classifier(kit, fields={"bf16": True, "eval_strategy": "epoch"}))


@scenario()
def compiled(kit: Kit) -> None:
    """A backend alone switches compilation on; what is saved has the model's own names.

    Forward passes are not recorded: the hook that does it would be compiled too.
    """
    fields = {"torch_compile_backend": "aot_eager", "save_strategy": "epoch", "eval_strategy": "epoch"}
    try:
        train(kit, plain(kit, fields=fields, model=helpers.PlainModel(dropout=0.0)))
    finally:
        torch.compiler.reset()


@scenario(warns="label_smoothing_factor=0.1` with `torch.compile`")
def smoothed_labels_of_a_compiled_model(kit: Kit) -> None:
    """Those of a causal language model are not shifted, in training and in evaluations."""
    fields = {"torch_compile_backend": "eager", "label_smoothing_factor": 0.1, "eval_strategy": "epoch"}
    try:
        train(kit, language_model(kit, fields=fields, model=helpers.gpt2()))
    finally:
        torch.compiler.reset()


@scenario()
def gradient_checkpointing(kit: Kit) -> None:
    fields = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    train(kit, language_model(kit, fields={**fields, **ACCUMULATION, "num_train_epochs": 2}))


@scenario()
def frozen_parameters(kit: Kit) -> None:
    model = kit.model(helpers.gpt2)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "h.1" in name or "ln_f" in name
    fields = {**ACCUMULATION, "num_train_epochs": 2, "weight_decay": 0.1, "save_strategy": "epoch"}
    train(kit, language_model(kit, fields=fields, model=model))


@scenario()
def model_init(kit: Kit) -> None:
    """Each call of ``train`` starts from new weights of the same seed."""
    trainer = language_model(kit, fields={"num_train_epochs": 2}, model_init=lambda: kit.model(helpers.gpt2))
    kit.train(trainer)
    kit.train(trainer)
    kit.evaluate(trainer)


@scenario(until="5.2")
def model_and_model_init(kit: Kit) -> None:
    """Before ``train`` replaces it, the model that was passed is evaluated; none is made of ``model_init``."""
    made = []

    def init() -> Any:
        made.append(len(made))
        return kit.model(helpers.gpt2)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`Trainer` requires either", FutureWarning)
        trainer = language_model(kit, model=kit.model(helpers.gpt2, n_layer=1), model_init=init)
    kit.evaluate(trainer)
    kit.keep("made before", len(made))
    kit.train(trainer)
    kit.keep("made", len(made))


@scenario()
def embedding_noise(kit: Kit) -> None:
    """NEFTune draws noise in training only and leaves no hook behind."""
    trainer = language_model(kit, fields={"neftune_noise_alpha": 5.0, "eval_strategy": "steps", "eval_steps": 2})
    train(kit, trainer)
    kit.keep("hooks", len(trainer.model.get_input_embeddings()._forward_hooks))


@scenario()
def lora(kit: Kit) -> None:
    fields = {**ACCUMULATION, "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    best = {"load_best_model_at_end": True, "save_total_limit": 1}
    train(kit, language_model(kit, fields={**fields, **best}, model=_lora(kit)))


@scenario(resumes_exactly=True)
def resume_lora(kit: Kit) -> None:
    fields = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    resume(kit, lambda each: language_model(each, fields=fields, model=_lora(each)), 3)


@scenario(resumes_exactly=True)
def resume_second_adapter(kit: Kit) -> None:
    """Of two adapters the second is trained; both are saved, and gone on from."""
    fields = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    resume(kit, lambda each: language_model(each, fields=fields, model=_two_adapters(each)), 3)


@scenario()
def tied_weights(kit: Kit) -> None:
    """The output layer of GPT-2 is its embedding: it is updated and saved once."""
    trainer = language_model(kit, fields={"save_strategy": "epoch", "weight_decay": 0.1})
    train(kit, trainer)
    model = trainer.model
    kit.keep("tied", model.get_input_embeddings().weight is model.get_output_embeddings().weight)


@scenario()
def multi_label_classifier(kit: Kit) -> None:
    rows = [{**row, "labels": [float(row["labels"] == each) for each in range(3)]} for row in helpers.labelled_rows(14)]
    model = kit.model(helpers.bert_classifier, problem_type="multi_label_classification")
    data = helpers.ListDataset(rows)
    train(kit, classifier(kit, model=model, train_dataset=data, eval_dataset=data, compute_metrics=None))


@scenario()
def use_cache_of_the_model(kit: Kit) -> None:
    trainer = language_model(kit)
    kit.train(trainer)
    kit.keep("use_cache", trainer.model.config.use_cache)


def _lora(kit: Kit) -> Any:
    from peft import get_peft_model

    return kit.model(lambda: get_peft_model(helpers.gpt2(), _adapter()))


def _two_adapters(kit: Kit) -> Any:
    from peft import get_peft_model

    def build() -> Any:
        model = get_peft_model(helpers.gpt2(), _adapter())
        model.add_adapter("second", _adapter())
        model.set_adapter("second")
        return model

    return kit.model(build)


def _adapter() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, task_type="CAUSAL_LM", fan_in_fan_out=True)


@scenario()
def special_tokens_of_a_model_from_model_init(kit: Kit) -> None:
    """Before 5.3 the tokenizer's special tokens go to the model that the run replaces."""
    fields = {"num_train_epochs": 1, "save_strategy": "epoch"}
    rows = helpers.ListDataset(helpers.translation_rows(6))
    given = {"model_init": lambda: kit.model(helpers.t5), "processing_class": helpers.tokenizer()}
    train(kit, language_model(kit, fields=fields, train_dataset=rows, eval_dataset=rows, **given))
