"""What transformers raises, ours does too: an error of that type with the phrase that people search for.

Rows of ``training_args.py``, ``trainer.py`` and ``trainer_seq2seq.py`` of both releases, in their order, without those
that need a TPU, SageMaker, a GPU, several processes or an older package, and without apex, which is not supported.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module, util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import GenerationConfig

from hf_compat.errors import HFCompatError
from tests.support.helpers import ListDataset, PlainModel, Stream, bert_classifier, gpt2, t5, vector_rows
from tests.support.phrases import LIBRARIES, rows_of_this_release, trainer, variables_taken_back

BEST = {"load_best_model_at_end": True, "eval_strategy": "steps"}


@dataclass(frozen=True)
class Row:
    """One error.

    Attributes:
        kind: The type that upstream raises.
        phrase: What both messages have.
        fields: Training arguments.
        then: What to do with the library and the arguments; by default nothing more.
        since: The first release with it.
        until: The first release without it.
    """

    kind: type[BaseException]
    phrase: str
    fields: dict[str, Any] = field(default_factory=dict)
    then: Callable[[Any, Any], object] | None = None
    since: str = "4.57"
    until: str = "6"


def without_model(library: Any, args: Any) -> None:
    library.Trainer(args=args)


def two_models(library: Any, args: Any) -> None:
    library.Trainer(PlainModel(), args, model_init=PlainModel)


def step_of_nothing(library: Any, args: Any) -> None:
    made = library.Trainer(PlainModel(), args)
    made._set_signature_columns_if_needed()
    made._prepare_inputs({})


def no_loss(library: Any, args: Any) -> None:
    class WithoutLoss(PlainModel):
        def forward(self, **inputs: Any) -> dict[str, Any]:
            return {"logits": torch.zeros(2, requires_grad=True)}

    library.Trainer(WithoutLoss(), args, train_dataset=ROWS).train()


def of_an_empty_folder(library: Any, args: Any) -> None:
    library.Trainer(PlainModel(), args, train_dataset=ROWS).train(resume_from_checkpoint=True)


def of_no_checkpoint(library: Any, args: Any) -> None:
    Path(args.output_dir, "checkpoint-1").mkdir(parents=True)
    library.Trainer(gpt2(), args, train_dataset=ROWS).train(resume_from_checkpoint=f"{args.output_dir}/checkpoint-1")


def optimizer_of(library: Any, args: Any) -> None:
    made = library.Trainer(bert_classifier(), args)
    made.create_optimizer()


def of_other_columns(library: Any, args: Any) -> None:
    rows = Dataset.from_dict({"unknown": [1, 2]})
    library.Trainer(bert_classifier(), args, train_dataset=rows).get_train_dataloader()


class Collator:
    """A collator of the oldest releases, which is not callable."""

    def collate_batch(self, rows: Any) -> Any:
        raise AssertionError("not called")


def setter(method: str) -> Callable[[Any, Any], object]:
    return lambda library, args: getattr(args, method)(strategy="steps", steps=0)


def loss_elsewhere(library: Any, args: Any) -> None:
    class Elsewhere(library.Trainer):  # type: ignore[misc]
        def training_step(self, *given: Any) -> Any:
            return torch.zeros((), device="meta")

    Elsewhere(PlainModel(), args, train_dataset=ROWS).train()


def loader_without_length(library: Any, args: Any) -> None:
    class Streams(library.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Stream(vector_rows(4)))

    Streams(PlainModel(), args, train_dataset=ROWS).train()


def memory_of_evaluation(library: Any, args: Any) -> None:
    class Large(PlainModel):
        def forward(self, features: Any, labels: Any = None) -> Any:
            if not self.training:
                raise RuntimeError("CUDA out of memory.")
            return super().forward(features, labels)

    library.Trainer(Large(), args, train_dataset=ROWS, eval_dataset=ROWS).train()


def loaded(**facts: Any) -> Callable[[Any, Any], object]:
    """Return what builds a Trainer of a model that has ``facts`` from how it was loaded."""

    def build(library: Any, args: Any) -> None:
        model: Any = PlainModel()
        for name, value in facts.items():
            object.__setattr__(model, name, value)
        library.Trainer(model, args)

    return build


def quantizer(**facts: bool) -> SimpleNamespace:
    return SimpleNamespace(quantization_config=SimpleNamespace(quant_method="mine"), **facts)


def predictions_of(**attributes: Any) -> Callable[[Any, Any], object]:
    """Return what predicts by the old loop from a loader with ``attributes``."""

    class Loader(list):  # type: ignore[type-arg]
        dataset = Stream(vector_rows(4))

    def call(library: Any, args: Any) -> None:
        loader = Loader([1]) if attributes else torch.utils.data.DataLoader(Stream(vector_rows(4)))
        for name, value in attributes.items():
            setattr(loader, name, value)
        library.Trainer(PlainModel(), args).prediction_loop(loader, "Prediction")

    return call


def unknown_key_in_a_file(library: Any, args: Any) -> None:
    path = Path(args.output_dir, "accelerator.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"nothing": 1}), "utf-8")
    library.TrainingArguments(args.output_dir, accelerator_config=str(path))


def of_no_model(library: Any, args: Any) -> None:
    library.Trainer.get_optimizer_cls_and_kwargs(args)


def generating(library: Any, args: Any) -> Any:
    """Return a Trainer that generates, of a model without a padding token."""
    model = t5()
    model.config.pad_token_id = None
    settings = library.Seq2SeqTrainingArguments(args.output_dir, use_cpu=True, report_to="none")
    return library.Seq2SeqTrainer(model, settings)


ROWS = ListDataset(vector_rows(4))
SGD = (torch.optim.SGD(PlainModel().parameters(), lr=0.1), None)
SEARCH = {"n_trials": 1, "backend": "optuna"}

TABLE: dict[str, Row] = {
    # training_args.py
    "evaluation without steps": Row(
        ValueError, "requires either non-zero --eval_steps or --logging_steps",
        {"eval_strategy": "steps", "logging_steps": 0, "logging_strategy": "no"},
    ),
    "two accumulations": Row(
        ValueError, "The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is greater than 1",
        {
            "gradient_accumulation_steps": 4,
            "accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}},
        },
        trainer(),
    ),
    "tf32": Row(ValueError, "--tf32 requires Ampere", {"tf32": True}),
    "empty cache": Row(ValueError, "`torch_empty_cache_steps` must be an integer", {"torch_empty_cache_steps": 0}),
    "logging without steps": Row(ValueError, "requires non-zero --logging_steps", {"logging_steps": 0}),
    "logging steps": Row(ValueError, "--logging_steps must be an integer if bigger than 1", {"logging_steps": 1.5}),
    "eval steps": Row(
        ValueError, "--eval_steps must be an integer if bigger than 1", {"eval_strategy": "steps", "eval_steps": 1.5}
    ),
    "save steps": Row(ValueError, "--save_steps must be an integer if bigger than 1", {"save_steps": 1.5}),
    "best strategies": Row(
        ValueError, "--load_best_model_at_end requires the save and eval strategy to match",
        {"load_best_model_at_end": True, "eval_strategy": "epoch"},
    ),
    "best mixed": Row(
        ValueError, "--load_best_model_at_end requires the saving steps to be a multiple of the evaluation steps",
        {**BEST, "save_steps": 5, "eval_steps": 0.3},
    ),
    "best shares": Row(
        ValueError, "--load_best_model_at_end requires the saving steps to be a multiple of the evaluation steps",
        {**BEST, "save_steps": 0.25, "eval_steps": 0.1},
    ),
    "best steps": Row(
        ValueError, "--load_best_model_at_end requires the saving steps to be a round multiple of the evaluation steps",
        {**BEST, "save_steps": 5, "eval_steps": 2},
    ),
    "bf16": Row(ValueError, "Your setup doesn't support bf16/gpu", {"bf16": True, "use_cpu": False}),
    "two precisions": Row(ValueError, "At most one of fp16 and bf16 can be True", {"fp16": True, "bf16": True}),
    "two full precisions": Row(
        ValueError, "At most one of fp16 and bf16 can be True for full eval",
        {"fp16_full_eval": True, "bf16_full_eval": True},
    ),
    "plateau": Row(
        ValueError, "lr_scheduler_type reduce_lr_on_plateau requires an eval strategy",
        {"lr_scheduler_type": "reduce_lr_on_plateau"},
    ),
    "greedy": Row(
        ValueError, "lr_scheduler_type greedy requires an eval strategy", {"lr_scheduler_type": "greedy"}, since="5.4"
    ),
    "warmup": Row(ValueError, "warmup_steps", {"warmup_steps": -1}),
    "warmup ratio": Row(ValueError, "warmup_ratio must lie in range [0,1]", {"warmup_ratio": 2.0}, until="5.0"),
    "prefetch": Row(
        ValueError, "--dataloader_prefetch_factor can only be set when data is loaded in a different process",
        {"dataloader_prefetch_factor": 2},
    ),
    "strategy": Row(ValueError, "is not a valid IntervalStrategy", {"eval_strategy": "never"}),
    "optimizer": Row(ValueError, "is not a valid OptimizerNames", {"optim": "adam"}),
    "schedule": Row(ValueError, "is not a valid SchedulerType", {"lr_scheduler_type": "lines"}),
    "unknown key of accelerator_config": Row(ValueError, "had unknown keys", then=unknown_key_in_a_file),
    "mps": Row(
        ValueError, "you do not have an MPS-enabled device on this machine", {"use_mps_device": True},
        lambda library, args: args.device, until="5.0",
    ),
    "fsdp of no option": Row(ValueError, "nknown `fsdp` option", {"fsdp": "nothing"}, since="5.10"),
    "fsdp of no member": Row(ValueError, "valid FSDPOption", {"fsdp": "nothing"}, until="5.0"),
    "offload alone": Row(ValueError, "can't work on its own", {"fsdp": "offload"}, until="5.0"),
    "two sharding strategies": Row(
        ValueError, "is not compatible with `", {"fsdp": "full_shard shard_grad_op"}, until="5.0"
    ),
    "strategy of version 1": Row(
        ValueError, "is only available with FSDP1", {"fsdp": "hybrid_shard"}, since="5.10"
    ),
    "two ways to wrap": Row(
        ValueError, "`min_num_params` and `transformer_layer_cls_to_wrap` are mutually exclusive",
        {"fsdp": "full_shard auto_wrap", "fsdp_config": {"min_num_params": 9, "transformer_layer_cls_to_wrap": "X"}},
        until="5.0",
    ),
    "weights of one rank": Row(
        ValueError, "`sync_module_states` must be",
        {"fsdp": "full_shard", "fsdp_config": {"sync_module_states": False, "cpu_ram_efficient_loading": True}},
        until="5.0",
    ),
    "way to wrap": Row(
        ValueError, "must be one of", {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "X"}}, since="5.10"
    ),
    "truth": Row(
        ValueError, "invalid truth value perhaps",
        {"fsdp": True, "fsdp_config": {"cpu_ram_efficient_loading": "perhaps"}}, since="5.10",
    ),
    "truth of version 2": Row(
        ValueError, "invalid truth value perhaps",
        {"fsdp": True, "fsdp_config": {"reshard_after_forward": "perhaps"}}, since="5.10",
    ),
    "accelerator_config": Row(
        NotImplementedError, "Tried passing in a callable to `accelerator_config`", {"accelerator_config": PlainModel}
    ),
    "set_evaluate": Row(ValueError, "requires a positive value for `steps`", then=setter("set_evaluate")),
    "set_save": Row(ValueError, "requires a positive value for `steps`", then=setter("set_save")),
    "set_logging": Row(ValueError, "requires a positive value for `steps`", then=setter("set_logging")),
    # trainer.py
    "no model": Row(RuntimeError, "`Trainer` requires either a `model` or `model_init` argument", then=without_model),
    "two models": Row(
        ValueError, "`Trainer` requires either a `model` or `model_init` argument, but not both", then=two_models,
        since="5.2",
    ),
    "fsdp of one process": Row(
        ValueError, "Using fsdp only works in distributed training", {"fsdp": "full_shard"}, trainer(), since="5.0"
    ),
    "accumulation twice": Row(
        ValueError, "`num_steps` is set",
        {"gradient_accumulation_steps": 2, "accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 3}}},
        trainer(),
    ),
    "quantized": Row(
        ValueError, "You cannot perform fine-tuning on purely quantized models", then=loaded(is_quantized=True)
    ),
    "quantized and compiled": Row(
        ValueError, "You cannot fine-tune quantized model with `torch.compile()`",
        then=loaded(is_quantized=True, _orig_mod=None),
    ),
    "quantized without training": Row(
        ValueError, "that quantization method do not support training",
        then=loaded(is_quantized=True, hf_quantizer=quantizer(is_trainable=False, is_qat_trainable=True)),
    ),
    "order of a stream": Row(
        ValueError, "the `--group_by_length` option is only available for `Dataset`, not",
        {"group_by_length": True, "max_steps": 1}, trainer(train_dataset=Stream(vector_rows(4))), until="5.0",
    ),
    "no length": Row(
        ValueError, "must be set to a positive value if dataloader does not have a length", then=loader_without_length
    ),
    "loss elsewhere": Row(
        ValueError, "Calculated loss must be on the original device", {"max_steps": 1, "logging_nan_inf_filter": False},
        loss_elsewhere,
    ),
    "memory of an evaluation": Row(
        RuntimeError, "out-of-memory",
        {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "auto_find_batch_size": True},
        memory_of_evaluation, since="5.4",
    ),
    "learning rates": Row(ValueError, "Trainer optimizer is None", then=trainer(call="get_learning_rates")),
    "group of an optimizer": Row(ValueError, "Trainer optimizer is None", then=trainer(call="get_optimizer_group")),
    "keyword of train": Row(
        TypeError, "train() got unexpected keyword arguments: other",
        then=lambda library, args: library.Trainer(PlainModel(), args).train(other=1), until="5.0",
    ),
    "no noise": Row(
        ValueError, "Neftune is not activated",
        then=lambda library, args: library.Trainer(PlainModel(), args)._deactivate_neftune(PlainModel()), until="5.0",
    ),
    "old loop without length": Row(
        ValueError, "must implement a working __len__", then=predictions_of(), until="5.0"
    ),
    "old loop without batch size": Row(
        ValueError, "Batch size cannot be None", then=predictions_of(batch_size=None), until="5.0"
    ),
    "lomo without a model": Row(ValueError, "You need to pass a `model`", {"optim": "lomo"}, of_no_model),
    "galore without a model": Row(
        ValueError, "You need to pass a model", {"optim": "galore_adamw", "optim_target_modules": ["query"]},
        of_no_model,
    ),
    "collator": Row(TypeError, "should be a simple callable", then=trainer(data_collator=Collator())),
    "no columns": Row(
        ValueError, "No columns in the dataset match the model's forward method signature", then=of_other_columns
    ),
    "no eval_dataset": Row(
        ValueError, "but you didn't pass an `eval_dataset` to `Trainer`", {"eval_strategy": "epoch"}, trainer()
    ),
    "best without a metric": Row(
        ValueError, "`args.metric_for_best_model` must be provided when using 'best' save_strategy",
        {"save_strategy": "best", "eval_strategy": "epoch"}, trainer(eval_dataset=ROWS),
    ),
    "metrics of batches": Row(
        ValueError, "your `compute_metrics` function must take a `compute_result` boolean argument",
        {"batch_eval_metrics": True}, trainer(compute_metrics=lambda prediction: {}),
    ),
    "two optimizers": Row(
        RuntimeError, "Passing both `optimizers` and `optimizer_cls_and_kwargs` arguments is incompatible",
        then=trainer(optimizers=SGD, optimizer_cls_and_kwargs=(torch.optim.SGD, {})),
    ),
    "optimizers with model_init": Row(
        RuntimeError, "Passing a `model_init` is incompatible with providing the `optimizers` argument",
        then=lambda library, args: library.Trainer(args=args, model_init=lambda: PlainModel(), optimizers=SGD),
    ),
    "stream without steps": Row(
        ValueError, "max_steps has to be specified", then=trainer(train_dataset=Stream(vector_rows(4)))
    ),
    "no train_dataset": Row(ValueError, "training requires a train_dataset", then=trainer(call="train")),
    "no dataset to evaluate": Row(ValueError, "evaluation requires an eval_dataset", then=trainer(call="evaluate")),
    "no checkpoints": Row(ValueError, "No valid checkpoint found in output directory", then=of_an_empty_folder),
    "no checkpoint": Row(ValueError, "Can't find a valid checkpoint at", then=of_no_checkpoint),
    "no loss": Row(ValueError, "did not return a loss", {"max_steps": 1, "remove_unused_columns": False}, no_loss),
    "empty batch": Row(ValueError, "The batch received was empty", then=step_of_nothing),
    "metric": Row(
        KeyError, "which is not found in the evaluation metrics",
        {"metric_for_best_model": "f1", "eval_strategy": "epoch", "save_strategy": "best", "max_steps": 1},
        trainer(train_dataset=ROWS, eval_dataset=ROWS, call="train"),
    ),
    "search without model_init": Row(
        RuntimeError, "you need to pass your model through a model_init function",
        then=lambda library, args: library.Trainer(PlainModel(), args).hyperparameter_search(**SEARCH),
    ),
    "model_init of two": Row(
        RuntimeError, "model_init should have 0 or 1 argument",
        then=lambda library, args: library.Trainer(args=args, model_init=lambda one, two: PlainModel()),
    ),
    "model_init of None": Row(
        RuntimeError, "model_init should not return None",
        then=lambda library, args: library.Trainer(args=args, model_init=lambda: None),
    ),
    "galore without modules": Row(
        ValueError, "You need to define `optim_target_modules`", {"optim": "galore_adamw"}, optimizer_of
    ),
    "galore of a number": Row(
        TypeError, "must be a list of strings", {"optim": "galore_adamw", "optim_target_modules": 3}, optimizer_of
    ),
    "target modules in a tuple": Row(
        TypeError,
        "must be a list of strings",
        {"optim": "galore_adamw", "optim_target_modules": ("query",)},
        optimizer_of,
    ),
    "galore of no modules": Row(
        ValueError, "No target modules found", {"optim": "galore_adamw", "optim_target_modules": ["nothing"]},
        optimizer_of,
    ),
    "layerwise accumulation": Row(
        ValueError, "does not support gradient accumulation",
        {"optim": "galore_adamw_layerwise", "optim_target_modules": ["query"], "gradient_accumulation_steps": 2},
        optimizer_of,
    ),
    # trainer_seq2seq.py
    "values for generation that contradict each other": Row(
        ValueError, "Fix these issues to train your model.",
        then=lambda library, args: library.Seq2SeqTrainer.load_generation_config(
            GenerationConfig(do_sample=False, temperature=0.5)
        ),
    ),
    "no padding token": Row(
        ValueError, "Pad_token_id must be set",
        then=lambda library, args: generating(library, args)._pad_tensors_to_max_len(torch.zeros(1, 2), 3),
    ),
}  # fmt: skip

PACKAGES: dict[str, tuple[str, type[BaseException]]] = {
    "apollo_adamw": ("apollo_torch", ImportError),
    "lomo": ("lomo_optim", ImportError),
    "grokadamw": ("grokadamw", ValueError),
    "adamw_torch_4bit": ("torchao", ImportError),
    "schedule_free_adamw": ("schedulefree", ImportError),
    "stable_adamw": ("optimi", ImportError),
    "adamw_anyprecision": ("torchdistx", ValueError),
    "adamw_bnb_8bit": ("bitsandbytes", ImportError),
    "adamw_torch_xla": ("torch_xla", ValueError),
    "adamw_torch_npu_fused": ("torch_npu", ValueError),
}
"""Optimizer to the package that it needs, and what upstream raises without it."""


def raised(row: Row, library: str, folder: Path) -> BaseException | None:
    """Return the error in which a row ends under a library."""
    parts = import_module(library)
    saves = any(name.startswith(("save_", "load_best")) for name in row.fields)
    settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "steps" if saves else "no"}
    settings |= row.fields
    with warnings.catch_warnings(), variables_taken_back():
        warnings.simplefilter("ignore")
        try:
            args = parts.TrainingArguments(str(folder / library), **settings)
            if row.then is not None:
                row.then(parts, args)
        except Exception as error:
            return error
    return None


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # 4.57 writes it


@pytest.mark.parametrize("row", rows_of_this_release(TABLE))
def test_errors(row: Row, tmp_path: Path) -> None:
    """Both raise an error of that type with that phrase."""
    for library in LIBRARIES:
        error = raised(row, library, tmp_path)
        assert isinstance(error, row.kind), (library, error)
        assert row.phrase in str(error), (library, str(error))


@pytest.mark.parametrize("optim", [name for name, row in PACKAGES.items() if util.find_spec(row[0]) is None])
def test_missing_packages(optim: str, tmp_path: Path) -> None:
    """Whatever type upstream raises for an optimizer's missing package, ours is both, and names the package."""
    package, kind = PACKAGES[optim]
    row = Row(kind, package, {"optim": optim, "optim_target_modules": ["query"]}, optimizer_of)
    assert isinstance(raised(row, "transformers", tmp_path), kind)
    error = raised(row, "hf_compat", tmp_path)
    assert isinstance(error, ValueError)
    assert isinstance(error, ImportError)
    assert f"the package `{package.partition('_')[0]}" in str(error)


@pytest.mark.skipif(util.find_spec("liger_kernel") is not None, reason="liger-kernel is installed")
def test_missing_kernels(tmp_path: Path) -> None:
    """Without liger-kernel both raise an ImportError that names field and package, before the first step."""
    then = trainer(train_dataset=ROWS, call="train")
    for library in LIBRARIES:
        error = raised(Row(ImportError, "", {"use_liger_kernel": True}, then), library, tmp_path)
        assert isinstance(error, ImportError), (library, error)
        assert re.search("`use_liger_kernel.*liger.kernel", str(error)), (library, error)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda made: made.create_scheduler(10), id="schedule of no optimizer"),
        pytest.param(lambda made: made.remove_callback(object()), id="no callback of it"),
        pytest.param(lambda made: made._memory_tracker.start(), id="memory of no stage"),
    ],
)
def test_errors_in_words_of_our_own(call: Callable[[Any], object], tmp_path: Path) -> None:
    """Where upstream's error says little, ours is one of hf_compat's that is caught by the same ``except``."""
    row = Row(
        Exception, "", {"skip_memory_metrics": False}, lambda library, args: call(library.Trainer(PlainModel(), args))
    )
    theirs, error = (raised(row, library, tmp_path) for library in LIBRARIES)
    assert theirs is not None
    assert isinstance(error, type(theirs))
    assert isinstance(error, HFCompatError)
