"""Every field that is carried out changes what it should: a row for each, or the name of the test that shows it."""

import ast
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from hf_compat import memory
from hf_compat.arguments import Seq2SeqTrainingArguments
from hf_compat.arguments.fields import declared
from tests.support import field_effects as see
from tests.support.paths import ROOT

RELEASE_5 = "5.24.0"
SAVES = {"save_strategy": "steps", "save_steps": 1}
EVALUATES = {"eval_strategy": "steps", "eval_steps": 1}
TWO_EPOCHS = {"eval_strategy": "epoch"}
WORKERS = {"dataloader_num_workers": 2}
BEST = {**SAVES, **EVALUATES, "load_best_model_at_end": True, "save_total_limit": None}
BY_LENGTH = {"train_sampling_strategy": "group_by_length"}
IN_ORDER = {"train_sampling_strategy": "sequential"}
GENERATES = {"predict_with_generate": True}
ALL_FOUR = [1, 2, 3, 4]


@dataclass(frozen=True)
class Effect:
    """What shows that a field is carried out.

    Attributes:
        observe: A function of tests/support/field_effects.py.
        value: What the field is set to.
        before: What is seen with the field at its default.
        after: What is seen with ``value``.
        given: Fields of both runs.
    """

    observe: Any
    value: Any
    before: Any
    after: Any
    given: dict[str, Any] = field(default_factory=dict)


def shuffled(seed):
    """Return the order of rows that a seed gives."""
    return torch.randperm(len(see.ROWS), generator=torch.Generator().manual_seed(seed)).tolist()


def _generation_config():
    from transformers import GenerationConfig

    return GenerationConfig(max_length=6, decoder_start_token_id=0, pad_token_id=0)


NO_LIMIT = {"max_steps": -1}
EFFECTS: dict[str, Effect] = {
    "output_dir": Effect(
        see.checkpoints, "elsewhere", ["trainer_output/4"], ["elsewhere/4"], {"save_strategy": "steps"}
    ),
    "per_device_train_batch_size": Effect(see.train_sizes, 3, [8] * 4, [3, 3, 2, 3]),
    "num_train_epochs": Effect(see.update_steps, 1.5, 6, 3, NO_LIMIT),
    "max_steps": Effect(see.update_steps, 5, 6, 5),
    "learning_rate": Effect(see.rates, 0.25, [0.0001] * 4, [0.25] * 4, {"lr_scheduler_type": "constant"}),
    "lr_scheduler_type": Effect(see.rates, "constant", [1.0, 0.75, 0.5, 0.25], [1.0] * 4, {"learning_rate": 1.0}),
    "lr_scheduler_kwargs": Effect(
        see.rates,
        {"num_cycles": 1},
        [1.0, 0.8536, 0.5, 0.1464],
        [1.0, 0.5, 0.0, 0.5],
        {"lr_scheduler_type": "cosine", "learning_rate": 1.0},
    ),
    "warmup_steps": Effect(
        see.rates,
        2,
        [1.0] * 4,
        [0.0, 0.5, 1.0, 1.0],
        {"lr_scheduler_type": "constant_with_warmup", "learning_rate": 1.0},
    ),
    "optim": Effect(see.optimizer_class, "sgd", "AdamW", "SGD"),
    "optim_args": Effect(
        see.optimizer("momentum"), "momentum=0.9", [0, 0], [0.9, 0.9], {"optim": "sgd", "semantics": RELEASE_5}
    ),
    "weight_decay": Effect(see.optimizer("weight_decay"), 0.1, [0.0, 0.0], [0.1, 0.0]),
    "adam_beta1": Effect(see.optimizer("betas"), 0.5, [(0.9, 0.999)] * 2, [(0.5, 0.999)] * 2),
    "adam_beta2": Effect(see.optimizer("betas"), 0.5, [(0.9, 0.999)] * 2, [(0.9, 0.5)] * 2),
    "adam_epsilon": Effect(see.optimizer("eps"), 0.1, [1e-8] * 2, [0.1] * 2),
    "gradient_accumulation_steps": Effect(see.batches_per_update, 2, 1.0, 2.0),
    "max_grad_norm": Effect(see.clipped_norm, 1e-3, False, True),
    "label_smoothing_factor": Effect(see.smoothing, 0.5, 0.0, 0.5),
    "bf16": Effect(see.computed_dtype, True, torch.float32, torch.bfloat16),
    "bf16_full_eval": Effect(see.evaluated_dtype, True, torch.float32, torch.bfloat16),
    "fp16_full_eval": Effect(see.evaluated_dtype, True, torch.float32, torch.float16),
    "activation_checkpointing": Effect(see.block_passes, True, 1.0, 2.0),
    "torch_compile": Effect(see.compilations, True, [], [("inductor", None)]),
    "torch_compile_backend": Effect(see.compilations, "eager", [], [("eager", None)]),
    "torch_compile_mode": Effect(see.compilations, "reduce-overhead", [], [("inductor", "reduce-overhead")]),
    "use_cache": Effect(see.cache_setting, True, False, True, {"semantics": RELEASE_5}),
    "neftune_noise_alpha": Effect(see.is_noisy, 5.0, False, True),
    "logging_strategy": Effect(see.logged("loss"), "epoch", ALL_FOUR, [2, 4]),
    "logging_steps": Effect(see.logged("loss"), 2, [], [2, 4]),
    "logging_first_step": Effect(see.logged("loss"), True, [3], [1, 3], {"logging_steps": 3}),
    "log_on_each_node": Effect(
        see.level_on_another_node, False, 40, 50, {"log_level": "error", "log_level_replica": "critical"}
    ),
    "logging_nan_inf_filter": Effect(see.logs_nan, False, False, True),
    "include_num_input_tokens_seen": Effect(see.tokens_seen, "all", 0, 80),
    "log_level": Effect(see.our_log_level, "error", 30, 40),
    "log_level_replica": Effect(see.level_of_a_replica, "error", 30, 40),
    "disable_tqdm": Effect(see.callbacks, True, "ProgressCallback", "PrinterCallback"),
    "report_to": Effect(see.log_folders, "tensorboard", [], ["output"], {"semantics": RELEASE_5}),
    "eval_strategy": Effect(see.logged("eval_loss"), "epoch", [], [2, 4]),
    "eval_steps": Effect(see.logged("eval_loss"), 1, [2, 4], ALL_FOUR, {"eval_strategy": "steps", "logging_steps": 2}),
    "eval_delay": Effect(see.logged("eval_loss"), 2, [2, 4], [4], TWO_EPOCHS),
    "per_device_eval_batch_size": Effect(see.eval_sizes, 3, [7], [3, 3, 1]),
    "prediction_loss_only": Effect(see.keeps_predictions, True, True, False),
    "eval_on_start": Effect(see.logged("eval_loss"), True, [], [0]),
    "eval_do_concat_batches": Effect(see.metric_calls, False, [("ndarray", False)], [("list", False)]),
    "eval_use_gather_object": Effect(see.gathers_objects, True, False, True),
    "eval_accumulation_steps": Effect(see.moves_to_the_cpu, 2, 1, 3, {"per_device_eval_batch_size": 2}),
    "include_for_metrics": Effect(see.metric_calls, ["loss"], [("ndarray", False)], [("ndarray", True)]),
    "batch_eval_metrics": Effect(
        see.metric_calls, True, [("ndarray", False)], [("Tensor", False)] * 2, {"per_device_eval_batch_size": 4}
    ),
    "save_only_model": Effect(
        see.checkpoint_files,
        True,
        {"optimizer.pt", "scheduler.pt", "rng_state.pth", "lightning.pt"},
        set(),
        {"save_strategy": "steps"},
    ),
    "save_strategy": Effect(see.checkpoints, "epoch", ["output/4"], ["output/2", "output/4"]),
    "save_steps": Effect(see.checkpoints, 3, ["output/4"], ["output/3", "output/4"], {"save_strategy": "steps"}),
    "save_on_each_node": Effect(see.saves_on_another_node, True, False, True),
    "save_total_limit": Effect(
        see.checkpoints, 2, [f"output/{step}" for step in ALL_FOUR], ["output/3", "output/4"], SAVES
    ),
    "load_best_model_at_end": Effect(
        see.ends_with_the_first_checkpoint, True, False, True,
        {**SAVES, **EVALUATES, "metric_for_best_model": "falling", "greater_is_better": True},
    ),
    "metric_for_best_model": Effect(
        see.best, "rising", "checkpoint-1", "checkpoint-4", {**BEST, "learning_rate": 0.0, "greater_is_better": True}
    ),
    "greater_is_better": Effect(
        see.best, False, "checkpoint-4", "checkpoint-1", {**BEST, "metric_for_best_model": "rising"}
    ),
    "ignore_data_skip": Effect(
        see.first_rows_after_a_resume, True, [4, 5, 6, 7], [0, 1, 2, 3], {**SAVES, **IN_ORDER}
    ),
    "restore_callback_states_from_checkpoint": Effect(see.counted_over_a_resume, True, 3, 4, SAVES),
    "full_determinism": Effect(see.is_deterministic, True, False, True),
    "seed": Effect(see.seeded, 7, 42, 7),
    "data_seed": Effect(see.order, 7, shuffled(42), shuffled(7)),
    "accelerator_config": Effect(
        see.batches_per_update, {"gradient_accumulation_kwargs": {"num_steps": 2}}, 1.0, 2.0
    ),
    "dataloader_drop_last": Effect(see.train_sizes, True, [3, 3, 2, 3], [3] * 4, {"per_device_train_batch_size": 3}),
    "dataloader_num_workers": Effect(see.loader("num_workers"), 2, 0, 2),
    "dataloader_pin_memory": Effect(see.loader("pin_memory"), False, True, False, {"use_cpu": False}),
    "dataloader_persistent_workers": Effect(see.loader("persistent_workers"), True, False, True, WORKERS),
    "dataloader_prefetch_factor": Effect(see.loader("prefetch_factor"), 3, 2, 3, WORKERS),
    "dataloader_multiprocessing_context": Effect(
        see.loader("multiprocessing_context"), "spawn", None, "spawn", WORKERS
    ),
    "dataloader_in_order": Effect(see.loader("in_order"), False, True, False, WORKERS),
    "remove_unused_columns": Effect(see.columns, False, ["features", "labels"], ["extra", "features", "labels"]),
    "label_names": Effect(see.label_shape, ["features"], (8,), (8, 16)),
    "train_sampling_strategy": Effect(see.order, "sequential", shuffled(42), list(range(8))),
    "length_column_name": Effect(see.lengths, "size", [1] * 8, [2] * 8, BY_LENGTH),
    "logging_dir": Effect(
        see.log_folders, "logs", ["output"], ["logs"], {"report_to": "tensorboard", "semantics": RELEASE_5}
    ),
    "save_safetensors": Effect(
        see.checkpoint_files, False, {"model.safetensors"}, {"pytorch_model.bin"}, {"save_strategy": "steps"}
    ),
    "use_mps_device": Effect(see.is_refused, True, False, True),
    "predict_with_generate": Effect(see.predicted_axes, True, 3, 2),
    "generation_max_length": Effect(see.generated_length, 5, 21, 5, GENERATES),
    "generation_num_beams": Effect(see.beams, 2, None, 2, GENERATES),
    "generation_config": Effect(see.generated_length, _generation_config, 21, 6, GENERATES),
}  # fmt: skip

SHOWN_ELSEWHERE: dict[str, str] = {
    "run_name": "tests/engine/test_loggers.py::test_writes_what_transformers_writes",
    "optim_target_modules": "tests/optim/test_low_rank.py::test_target_modules_of_a_run",
    "use_liger_kernel": "tests/optim/test_liger.py::test_when",
    "liger_kernel_config": "tests/optim/test_liger.py::test_switches",
    "fp16": "tests/arguments/test_run_precision.py::test_what_a_gpu_allows",
    "half_precision_backend": "tests/support/scenarios/models.py::backends_of_mixed_precision",
    "use_cpu": "tests/arguments/test_run_precision.py::test_what_a_gpu_allows",
    "_n_gpu": "tests/arguments/test_run_precision.py::test_what_a_gpu_allows",
    "tf32": "tests/arguments/test_run_precision.py::test_tf32",
    "activation_checkpointing_kwargs": "tests/trainer/test_trainer.py::test_settings_of_checkpointing_reach_the_model",
    "torch_empty_cache_steps": "tests/arguments/test_field_effects.py::test_the_cache_is_emptied",
    "save_async": "tests/checkpoint/test_background.py::test_training_goes_on_meanwhile",
    "preemption_timeout": "tests/trainer/test_deadline.py::test_no_deadline",
    "on_save_error": "tests/checkpoint/test_background.py::test_errors_are_survived_if_asked",
    "enable_jit_checkpoint": "tests/trainer/test_preemption.py::test_runs_without_checkpoints",
    "auto_find_batch_size": "tests/support/scenarios/searching.py::find_batch_size",
    "ray_scope": "tests/trainer/test_searching.py::test_ray",
    "push_to_hub": "tests/trainer/test_pushing.py::test_commits_are_upstreams",
    "hub_strategy": "tests/trainer/test_pushing.py::test_commits_are_upstreams",
    "hub_model_id": "tests/trainer/test_pushing.py::test_commits_are_upstreams",
    "hub_token": "tests/trainer/test_pushing.py::test_everything_is_sent_but_tokens_and_folders_being_written",
    "hub_private_repo": "tests/trainer/test_pushing.py::test_commits_are_upstreams",
    "hub_always_push": "tests/trainer/test_pushing.py::test_a_push_under_way",
    "hub_revision": "tests/trainer/test_pushing.py::test_commits_are_upstreams",
    "skip_memory_metrics": "tests/support/scenarios/aids.py::memory_metrics",
    "debug": "tests/support/scenarios/aids.py::overflow_is_reported",
    "past_index": "tests/trainer/test_past.py::test_memory_survives_an_evaluation",
    "jit_mode_eval": "tests/trainer/test_transformers_4.py::test_traced_models_give_the_same_loss",
    "use_legacy_prediction_loop": "tests/trainer/test_transformers_4.py::test_the_older_loop_needs_a_length",
    "average_tokens_across_devices": "tests/scripts/distributed_scenarios.py::tokens_of_each_process",
    "fsdp": "tests/arguments/test_fsdp.py::test_settings",
    "fsdp_config": "tests/arguments/test_fsdp.py::test_settings",
    "parallelism_config": "tests/distributed/test_tensor_parallel.py::test_numbers_of_one_process",
    "ddp_find_unused_parameters": "tests/engine/test_process_layout.py::test_settings_of_ddp",
    "ddp_bucket_cap_mb": "tests/engine/test_process_layout.py::test_settings_of_ddp",
    "ddp_broadcast_buffers": "tests/engine/test_process_layout.py::test_settings_of_ddp",
    "ddp_static_graph": "tests/engine/test_process_layout.py::test_settings_of_ddp",
    "ddp_backend": "tests/engine/test_process_layout.py::test_processes_that_never_come",
    "ddp_timeout": "tests/engine/test_process_layout.py::test_processes_that_never_come",
    "deepspeed": "tests/arguments/test_deepspeed.py::test_the_finished_config_is_upstreams",
    "semantics": "tests/arguments/test_semantics.py::test_environment_overrides_and_the_argument_wins",
}
"""Field to the test that shows its effect, where a row cannot: a GPU stands in, or more is shown there."""


def carried_out():
    fields = declared(Seq2SeqTrainingArguments)
    return [name for name, item in fields.items() if item.effect.handling in ("trainer", "plan")]


def test_every_field_carried_out_has_a_row():
    """No field says that it is carried out without a row here or a test elsewhere."""
    assert set(carried_out()) == EFFECTS.keys() | SHOWN_ELSEWHERE.keys()
    assert not EFFECTS.keys() & SHOWN_ELSEWHERE.keys()


@pytest.mark.parametrize("test", sorted(set(SHOWN_ELSEWHERE.values())))
def test_named_tests_exist(test):
    """A test that shows an effect elsewhere is there."""
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def observed(name, effect, folder, monkeypatch, **setting):
    """Return what is seen in a run of its own, with the field as ``setting`` has it."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    fields = {**see.QUIET, **effect.given}
    fields.pop(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older names warn, which test_arguments shows
        return effect.observe(see.Bench(folder, {**fields, **setting}, monkeypatch))


@pytest.mark.parametrize("name", EFFECTS)
def test_the_field_changes_what_it_should(name, tmp_path, monkeypatch):
    """What is seen with the field at its default, and with another value."""
    effect = EFFECTS[name]
    value = effect.value() if callable(effect.value) else effect.value
    before = observed(name, effect, tmp_path / "before", monkeypatch)
    after = observed(name, effect, tmp_path / "after", monkeypatch, **{name: value})
    if isinstance(effect.before, set):  # files that are in the one and not in the other
        before, after = before - after, after - before
    assert before == effect.before
    assert after == effect.after


@pytest.mark.parametrize(("every", "times"), [(None, 0), (1, 4), (2, 2)])
def test_the_cache_is_emptied(every, times, tmp_path, monkeypatch):
    """The device's cache is emptied each so many update steps; here a GPU is only said to be there."""
    monkeypatch.chdir(tmp_path)
    calls = []
    bench = see.Bench(tmp_path, {**see.QUIET, "torch_empty_cache_steps": every}, monkeypatch)
    trainer = bench.trainer()
    monkeypatch.setattr(memory, "accelerator_type", lambda: "cuda")
    # A build of torch for GPUs would ask the driver there.
    monkeypatch.setattr(torch.optim.Optimizer, "_accelerator_graph_capture_health_check", lambda _: None, raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(bool(bench.batches)))
    trainer.train()
    assert calls.count(True) == times  # Lightning empties it once before the first batch
