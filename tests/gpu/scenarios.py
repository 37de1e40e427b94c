"""What is a GPU's own, as scenarios of both libraries: precision, compilation, memory, loaders, several ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from accelerate import ParallelismConfig
from packaging.version import Version

from tests.gpu.memory import exhausted, memory_of_the_gpu
from tests.gpu.overrides import overrides
from tests.scripts.sharded_common import adapted, llama
from tests.support import helpers
from tests.support.helpers import EVENTS
from tests.support.parity import Kit
from tests.support.presharded import mixtral, presharded
from tests.support.scenarios.common import language_model, plain
from tests.support.scenarios.models import after_another_trainer
from tests.support.scenarios.optimizers import handed_over
from tests.support.scenarios.overriding import stepped_by_the_user
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.saving import seen_by_save
from tests.support.scenarios.updates import ACCUMULATION, train

IS_5 = Version(transformers.__version__) >= Version("5")
Body = Callable[[Kit], None]
Fields = dict[str, Any]

CADENCE: Fields = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
"""Two epochs, each of which ends with an evaluation and a checkpoint."""


PRECISIONS: dict[str, Fields] = {"fp32": {}, "bf16": {"bf16": True}, "fp16": {"fp16": True}}


def training(*, epochs: int = 2, **fields: Any) -> Body:
    """Return a scenario that trains a language model with accumulation, evaluates, predicts and saves."""

    def body(kit: Kit) -> None:
        train(kit, language_model(kit, fields={**ACCUMULATION, **CADENCE, "num_train_epochs": epochs, **fields}))

    return body


def resuming(*, step: int = 4, **fields: Any) -> Body:
    """Return a scenario that goes on within an epoch, after ``step`` update steps."""
    every = {**ACCUMULATION, **CADENCE, "save_strategy": "steps", "save_steps": 1, **fields}
    return lambda kit: resume(kit, partial(language_model, fields=every), step)


class Overflowing(helpers.PlainModel):
    """Its third forward pass in training returns a loss that is too large for float16 once it is scaled."""

    passes = 0

    def forward(self, features: Any, labels: Any = None) -> dict[str, Any]:
        outputs = super().forward(features=features, labels=labels)
        if self.training:
            self.passes += 1
            if self.passes == 3:
                outputs["loss"] = outputs["loss"] * 1e35
        return outputs


def overflowing(*, version: int | None = None, **fields: Any) -> Body:
    """Return a scenario with fp16 in which the gradient scaler skips a step.

    Args:
        version: That of FSDP; None without FSDP.
        **fields: Training arguments.
    """

    def body(kit: Kit) -> None:
        scales: list[float] = []

        class Scales(kit.TrainerCallback):
            def on_step_end(self, *given: Any, **named: Any) -> None:
                scales.append(trainer.accelerator.scaler.get_scale())

        every = {**CADENCE, "fp16": True, **fields}
        if version is not None:
            every |= fsdp(version, "full")
        trainer = plain(kit, fields=every, model=kit.model(Overflowing), callbacks=[Scales()])
        train(kit, trainer)
        assert len(set(scales)) > 1, "no step was skipped"
        kit.keep("scales", scales)

    return body


def around_another(kit: Kit) -> None:
    """The script's optimizer steps another one, and has not called torch's constructor."""

    class Slow(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner, self.defaults = inner, inner.defaults
            self.param_groups, self.state = inner.param_groups, inner.state

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)

        def zero_grad(self, set_to_none: bool = True) -> None:
            self.inner.zero_grad(set_to_none)

        def state_dict(self) -> Any:
            return self.inner.state_dict()

        def load_state_dict(self, state: Any) -> None:
            self.inner.load_state_dict(state)

    model = kit.model(helpers.PlainModel)
    optimizer = Slow(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    train(kit, plain(kit, model=model, optimizers=(optimizer, None), fields={**CADENCE, "fp16": True}))


def own_scaler(*, in_override: bool = False, **fields: Any) -> Body:
    """Return a scenario in which the script puts a gradient scaler of its own into the accelerator.

    Args:
        in_override: Whether an override of the method that makes the accelerator does so, and not the script.
        **fields: Training arguments.
    """

    def body(kit: Kit) -> None:
        def put(trainer: Any) -> None:
            trainer.accelerator.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8, growth_interval=2)

        class Own(kit.Trainer):  # type: ignore[misc, name-defined]
            def create_accelerator_and_postprocess(self) -> None:
                super().create_accelerator_and_postprocess()
                put(self)

        chosen = {"subclass": Own} if in_override else {}
        trainer = plain(kit, fields={**CADENCE, "fp16": True, **fields}, **chosen)
        if not in_override:
            put(trainer)
        train(kit, trainer)
        kit.keep("scaler", trainer.accelerator.scaler.state_dict())

    return body


def compiled(backend: str, **fields: Any) -> Body:
    """Return a scenario of a compiled model; its forward passes are not recorded, the hook would be compiled too."""

    def body(kit: Kit) -> None:
        every = {"torch_compile": True, "torch_compile_backend": backend, **CADENCE, **fields}
        train(kit, plain(kit, fields=every, model=helpers.PlainModel(dropout=0.0)))

    return body


def smoothed_and_compiled(kit: Kit) -> None:
    """The labels of a compiled language model are not shifted; see :func:`compiled`."""
    every = {"torch_compile": True, "torch_compile_backend": "eager", "label_smoothing_factor": 0.1, **CADENCE}
    train(kit, language_model(kit, fields=every, model=helpers.gpt2(dropout=0.0)))


def evaluated_before(**fields: Any) -> Body:
    """Return a scenario that evaluates, trains and evaluates; see :func:`compiled`."""

    def body(kit: Kit) -> None:
        trainer = plain(kit, fields={**CADENCE, **fields}, model=helpers.PlainModel(dropout=0.0))
        kit.evaluate(trainer)
        train(kit, trainer)

    return body


def tf32(enabled: bool) -> Body:
    """Return a scenario that trains with ``tf32``, and keeps torch's switches."""

    def body(kit: Kit) -> None:
        torch.set_float32_matmul_precision("highest")  # as a new process has it
        torch.backends.cuda.matmul.fp32_precision = torch.backends.fp32_precision = "none"
        train(kit, plain(kit, fields={"tf32": enabled}))
        kit.keep("switches", [torch.backends.cuda.matmul.fp32_precision, torch.backends.fp32_precision])

    return body


def workers(**fields: Any) -> Body:
    """Return a scenario whose batches come from workers, in pinned memory, and are copied without waiting."""
    copies = {"accelerator_config": {"non_blocking": True}, "dataloader_num_workers": 2}
    return training(**copies, **fields)


def quantized(*, is_placed: bool = False, **facts: Any) -> Body:
    """Return a scenario of a model that says how it is quantized.

    Args:
        is_placed: Whether it was loaded on the GPU of its rank, by a ``device_map``.
        **facts: Attributes of the model.
    """

    def body(kit: Kit) -> None:
        model = kit.model(helpers.PlainModel)
        if is_placed:
            facts["hf_device_map"] = {"": int(os.environ["LOCAL_RANK"])}
            model.to(f"cuda:{facts['hf_device_map']['']}")
        for name, value in facts.items():
            setattr(model, name, value)
        train(kit, plain(kit, model=model, fields=CADENCE))

    return body


def fsdp(version: int, state: str) -> Fields:
    """Return training arguments for FSDP, of which transformers 4 reads variables that ``accelerate launch`` sets."""
    config: Fields = {"version": version, "state_dict_type": f"{state.upper()}_STATE_DICT"}
    if not IS_5:
        os.environ.update(FSDP_VERSION=str(version), FSDP_STATE_DICT_TYPE=config["state_dict_type"])
    return {"fsdp": "full_shard", "fsdp_config": config}


def sharded(
    version: int, state: str, *, resumes: bool = False, model: Any = llama, sizes: Fields | None = None, **fields: Any
) -> Body:
    """Return a scenario of FSDP, which keeps the calls of ``_save`` on each rank.

    Args:
        version: FSDP's version.
        state: Kind of its checkpoints, ``"full"`` or ``"sharded"``.
        resumes: Whether it also goes on within an epoch.
        model: Builds the model.
        sizes: Sizes of a ``ParallelismConfig``; None without one.
        **fields: Training arguments.
    """
    every = {**ACCUMULATION, **CADENCE, "save_strategy": "steps", "save_steps": 1, **fields}

    def build(kit: Kit, seen: list[int]) -> Any:
        chosen = {**fsdp(version, state), **every}
        if sizes is not None:
            chosen["parallelism_config"] = ParallelismConfig(**sizes)
        return language_model(kit, rows=28, fields=chosen, model=kit.model(model), subclass=seen_by_save(kit, seen))

    def body(kit: Kit) -> None:
        seen: list[int] = []
        if resumes:
            resume(kit, partial(build, seen=seen), 3)
        else:
            train(kit, build(kit, seen))
        kit.keep("seen by `_save`", seen)

    return body


tied_llama = partial(llama, tie_word_embeddings=True)


def of_fsdp2(**keys: Any) -> Fields:
    """Return the ``fsdp_config`` of FSDP 2 with full state dicts and further ``keys``."""
    config = {"version": 2, "state_dict_type": "FULL_STATE_DICT", **keys}  # the variables are set as a body runs
    return {"fsdp": "full_shard auto_wrap", "fsdp_config": config}


def replicated_by_sizes(kit: Kit) -> None:
    """Replicas alone, of which a device mesh says how many there are."""
    fields = {**ACCUMULATION, **CADENCE, "parallelism_config": ParallelismConfig(dp_replicate_size=2)}
    train(kit, language_model(kit, fields=fields))


def not_sharded(kit: Kit) -> None:
    """FSDP 1 with the whole model on each rank, which transformers 5 has where this variable says so too."""
    os.environ["FSDP_SHARDING_STRATEGY"] = "NO_SHARD"
    sharded(1, "full", **{**fsdp(1, "full"), "fsdp": "no_shard"})(kit)


def wrapped_optimizer(version: int | None = None) -> Body:
    """Return a scenario that keeps what callbacks and methods find in the optimizer's wrapper, under FSDP or DDP."""

    def body(kit: Kit) -> None:
        found: list[tuple[str, str]] = []

        def note(event: str, optimizer: Any) -> None:
            found.append((event, type(optimizer.optimizer).__name__))

        class Looks(kit.Trainer):  # type: ignore[misc, name-defined]
            def training_step(self, *given: Any, **named: Any) -> Any:
                note("training_step", self.optimizer)
                return super().training_step(*given, **named)

            def _save_checkpoint(self, *given: Any, **named: Any) -> Any:
                note("_save_checkpoint", self.optimizer)
                return super()._save_checkpoint(*given, **named)

        def looking(event: str) -> Any:
            return lambda self, args, state, control, **named: note(event, named["optimizer"])

        events = {event: looking(event) for event in EVENTS if event not in ("on_init_end", "on_prediction_step")}
        callbacks = [type("Looking", (kit.TrainerCallback,), events)()]
        every = {**ACCUMULATION, **CADENCE, **({} if version is None else fsdp(version, "full"))}
        kit.train(language_model(kit, fields=every, model=kit.model(llama), subclass=Looks, callbacks=callbacks))
        kit.keep("found", found)

    return body


SCHEDULE_FREE: Fields = {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant", "save_strategy": "no"}
"""An optimizer with other weights in evaluations, none of which a save follows."""

GPU_SCENARIOS: dict[str, Body] = {
    "fp32": training(),
    "tf32_on": tf32(True),
    "tf32_off": tf32(False),
    "bf16_on_gpu": training(bf16=True),
    "fp16": training(fp16=True),
    "fp16_stepped_by_the_user": partial(stepped_by_the_user, fields={**ACCUMULATION, "fp16": True}),
    "fp16_overflow_fused": overflowing(optim="adamw_torch_fused"),
    "fp16_overflow_plain": overflowing(optim="adamw_torch"),
    "fp16_overflow_accumulating": overflowing(gradient_accumulation_steps=2, max_grad_norm=0.0),
    "scaler_of_the_script": own_scaler(),
    "scaler_of_an_override": own_scaler(in_override=True, gradient_accumulation_steps=2, optim="adamw_torch"),
    "optimizer_of_the_script_fp16": partial(handed_over, fused=True, fields={"fp16": True}),
    "optimizer_of_the_script_fp16_plain": partial(handed_over, fields={"fp16": True}),
    "optimizer_around_another_fp16": around_another,
    "fp16_after_fp32": lambda kit: after_another_trainer(kit, {}, {"fp16": True}),
    "fp32_after_fp16": lambda kit: after_another_trainer(kit, {"fp16": True}, {}),
    "bf16_full_evaluation": training(bf16_full_eval=True),
    "fp16_full_evaluation": training(fp16_full_eval=True),
    "compiled_eager": compiled("eager"),
    "compiled_aot_eager": compiled("aot_eager"),
    "compiled_in_bf16": compiled("aot_eager", bf16=True),
    "compiled_and_smoothed": smoothed_and_compiled,
    "pinned": training(accelerator_config={"non_blocking": True}),
    "pageable": training(dataloader_pin_memory=False),
    "workers": workers(),
    "memory_of_the_gpu": memory_of_the_gpu,
    "emptied_cache": training(torch_empty_cache_steps=2),
    "noisy_embeddings": training(neftune_noise_alpha=5.0, bf16=True),
    "checkpointed_activations": training(gradient_checkpointing=True, bf16=True),
    "best_checkpoint": training(load_best_model_at_end=True, save_total_limit=1, bf16=True),
    "memory_runs_out": exhausted,
    "overrides_in_fp16": overrides(fp16=True),
    "overrides_compiled": overrides(torch_compile=True, torch_compile_backend="eager"),
    "evaluated_before_compiled": evaluated_before(torch_compile=True, torch_compile_backend="eager"),
    "combined_bf16": training(
        bf16=True,
        bf16_full_eval=True,
        optim="rmsprop",
        max_grad_norm=0.3,
        eval_on_start=True,
        gradient_checkpointing=True,
        average_tokens_across_devices=False,
        logging_steps=2,
    ),
    "combined_fp16": training(
        fp16=True,
        optim="adafactor",
        group_by_length=True,
        dataloader_num_workers=1,
        dataloader_persistent_workers=True,
        dataloader_prefetch_factor=1,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        eval_use_gather_object=True,
    ),
    "combined_fp32": training(
        optim="adagrad",
        label_smoothing_factor=0.1,
        load_best_model_at_end=True,
        eval_accumulation_steps=1,
        include_num_input_tokens_seen="all",
        torch_empty_cache_steps=1,
        dataloader_drop_last=True,
    ),
    "combined_resumed": resuming(
        bf16=True,
        optim="sgd",
        neftune_noise_alpha=4.0,
        logging_strategy="epoch",
        accelerator_config={"non_blocking": True},
    ),
    "resume_fp32": resuming(),
    "resume_bf16": resuming(bf16=True),
    "resume_fp16": resuming(fp16=True),
    "resume_with_workers_of_the_gpu": resuming(dataloader_num_workers=1, accelerator_config={"non_blocking": True}),
}
"""Each scenario of one GPU by its name."""

BITSANDBYTES: Fields = {"is_loaded_in_8bit": True, "quantization_method": "bitsandbytes"}

RANKS_SCENARIOS: dict[str, Body] = {
    **{f"ddp_{precision}": resuming(**fields) for precision, fields in PRECISIONS.items()},
    "ddp_overrides": overrides(),
    "ddp_overrides_in_fp16": overrides(fp16=True),
    "ddp_by_sizes": replicated_by_sizes,
    "ddp_in_8_bits": quantized(**BITSANDBYTES),
    "ddp_in_8_bits_on_its_gpu": quantized(is_placed=True, **BITSANDBYTES),
    "ddp_quantized": quantized(quantization_method="torchao"),
    "ddp_fp16_overflow": overflowing(),
    "ddp_best_checkpoint": training(load_best_model_at_end=True, save_total_limit=1),
    "ddp_noisy_embeddings": training(neftune_noise_alpha=5.0),
    "ddp_compiled": compiled("eager"),
    "ddp_bf16_full_evaluation": training(bf16_full_eval=True),
    "ddp_memory_runs_out": exhausted,
    "fsdp2_fp16_overflow": overflowing(version=2),
    "fsdp2_best_checkpoint": sharded(2, "full", save_strategy="epoch", load_best_model_at_end=True, save_total_limit=1),
    "fsdp2_noisy_embeddings": sharded(2, "full", neftune_noise_alpha=5.0),
    "fsdp2_compiled": sharded(2, "full", torch_compile=True, torch_compile_backend="eager"),
    "fsdp2_checkpointed": sharded(
        2, "full", model=partial(llama, attention_dropout=0.3), **of_fsdp2(activation_checkpointing=True)
    ),
    "fsdp2_lomo": sharded(2, "full", optim="lomo", gradient_accumulation_steps=1),
    "fsdp2_schedule_free": sharded(2, "full", **SCHEDULE_FREE),
    "fsdp2_schedule_free_tied": sharded(2, "full", model=tied_llama, **SCHEDULE_FREE),
    "fsdp1_adapter": sharded(1, "full", model=adapted, save_strategy="no"),  # transformers saves no weight of it
    "fsdp1_whole": not_sharded,
    "ddp_wrapped_optimizer": wrapped_optimizer(),
    "fsdp1_wrapped_optimizer": wrapped_optimizer(1),
    "fsdp2_wrapped_optimizer": wrapped_optimizer(2),
    "fsdp2_adapter": sharded(2, "full", model=adapted),
    "fsdp2_adapter_tied": sharded(2, "full", model=partial(adapted, tie_word_embeddings=True)),
    "fsdp2_not_resharded": sharded(2, "full", **of_fsdp2(reshard_after_forward=False)),
}
"""Each scenario of several GPUs by its name."""
for version in (1, 2):
    for precision, fields in PRECISIONS.items():
        # torch's fused AdamW does not take the scaler of FSDP 1.
        every = {**fields, "optim": "adamw_torch"} if (version, precision) == (1, "fp16") else fields
        for state in ("full", "sharded"):
            RANKS_SCENARIOS[f"fsdp{version}_{precision}_{state}"] = sharded(version, state, **every)
        RANKS_SCENARIOS[f"resume_fsdp{version}_{precision}"] = sharded(version, "full", resumes=True, **every)
    RANKS_SCENARIOS[f"resume_fsdp{version}_tied_full"] = sharded(version, "full", resumes=True, model=tied_llama)
    RANKS_SCENARIOS[f"fsdp{version}_tied_sharded"] = sharded(version, "sharded", model=tied_llama)

LOADED_SCENARIOS: dict[str, Body] = {
    "loaded_fsdp": presharded(sizes={"fsdp_size": 2}),
    "loaded_fsdp_fp16": presharded(sizes={"fsdp_size": 2}, fp16=True),
    "loaded_fsdp_bf16": presharded(sizes={"fsdp_size": 2}, bf16=True),
    "loaded_tp": presharded(sizes={"tp_size": 2}),
    "loaded_tp_by_plan": presharded(sizes={"tp_plan": "auto"}),
    "loaded_tp_memory_runs_out": presharded(
        sizes={"tp_size": 2}, most=3, auto_find_batch_size=True, per_device_train_batch_size=5
    ),
    "loaded_tp_by_model_init": presharded(sizes={"tp_size": 2}, made=True, requested={"tp_size": 2}),
    "loaded_fsdp_by_model_init": presharded(sizes={"fsdp_size": 2}, made=True),
    "loaded_tp_smoothed": presharded(sizes={"tp_size": 2}, label_smoothing_factor=0.1),
    "loaded_tp_averaged_by_batch": presharded(sizes={"tp_size": 2}, average_tokens_across_devices=False),
    "loaded_tp_bf16": presharded(sizes={"tp_size": 2}, bf16=True),
    "loaded_experts": presharded(mixtral, sizes={"fsdp_size": 2, "ep_size": 2}),
    "loaded_tp_experts": presharded(mixtral, sizes={"tp_size": 2, "ep_size": 2}),
}
"""Each scenario of a model that two ranks load in shards, by its name."""

REPLICAS: Fields = {"dp_replicate_size": 2, "dp_shard_size": 2}
MESH_SCENARIOS: dict[str, Body] = {
    "hsdp_fp32_full": sharded(2, "full", sizes=REPLICAS),
    "hsdp_bf16_sharded": sharded(2, "sharded", sizes=REPLICAS, bf16=True),
    "hsdp_fp16_full": sharded(2, "full", sizes=REPLICAS, fp16=True),
    "resume_hsdp_fp32": sharded(2, "full", resumes=True, sizes=REPLICAS),
    "resume_hsdp_bf16": sharded(2, "full", resumes=True, sizes=REPLICAS, bf16=True),
    "loaded_hsdp": presharded(sizes={"dp_replicate_size": 2, "fsdp_size": 2}),
    "loaded_hsdp_experts": presharded(mixtral, sizes={"dp_replicate_size": 2, "fsdp_size": 2, "ep_size": 2}),
    "loaded_tp_replicas": presharded(sizes={"tp_size": 2, "dp_replicate_size": 2}),
    "loaded_tp_fsdp": presharded(sizes={"tp_size": 2, "fsdp_size": 2}),
    "loaded_tp_fsdp_by_model_init": presharded(
        sizes={"tp_size": 2, "fsdp_size": 2}, made=True, requested={"tp_size": 2, "dp_shard_size": 2}
    ),
    "loaded_tp_fsdp_experts": presharded(mixtral, sizes={"tp_size": 2, "fsdp_size": 2, "ep_size": 4}),
}
"""Each scenario of four GPUs by its name."""
