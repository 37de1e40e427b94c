"""What two processes do with DeepSpeed under either library."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import ParallelismConfig
from lightning.pytorch.strategies import DeepSpeedStrategy

from hf_compat.engine.strategies.choice import deepspeed_meant
from hf_compat.errors import CheckpointError
from tests.scripts.distributed_scenarios import shared
from tests.scripts.sharded_common import held, llama, second_model
from tests.support import helpers
from tests.support.deepspeed_tools import allow_fp16, without_extension
from tests.support.parity import Kit
from tests.support.scenarios.common import language_model
from tests.support.scenarios.generating import GENERATES, translator
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.saving import seen_by_save
from tests.support.scenarios.updates import ACCUMULATION, train

AUTO = "auto"


def config(stage: int, **sections: Any) -> dict[str, Any]:
    """Return a config that leaves all it can to the arguments."""
    sizes = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), AUTO)
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True, **sections.pop("zero_optimization", {})}
    return {**sizes, "gradient_clipping": AUTO, "zero_optimization": zero, **sections}


def trained(kit: Kit, settings: dict[str, Any], *, subclass: Any = None, **fields: Any) -> Any:
    """Train a language model on a short last window and ragged token counts; keep the weights put together."""
    without_extension()
    cadence = {"eval_strategy": "steps", "eval_steps": 2, "num_train_epochs": 2, "weight_decay": 0.1}
    every = {**ACCUMULATION, **cadence, **fields, "deepspeed": settings}
    trainer = language_model(kit, rows=27, fields=every, subclass=subclass)
    kit.train(trainer)
    kit.keep("weights", trainer.accelerator.get_state_dict(trainer.deepspeed) or {})
    kit.keep("gathered", trainer.accelerator.get_state_dict(trainer.deepspeed, unwrap=False) or {})
    kit.keep("wrapped", type(trainer.model_wrapped).__name__)
    return trainer


@shared
def zero_1(kit: Kit) -> None:
    trained(kit, config(1))


@shared
def accumulation_that_the_config_leaves_out(kit: Kit) -> None:
    settings = config(2)
    del settings["gradient_accumulation_steps"], settings["train_batch_size"]
    trained(kit, settings)


@shared
def zero_2(kit: Kit) -> None:
    """An override of ``_save`` sees the calls of its rank."""
    seen: list[int] = []
    trained(kit, config(2), subclass=seen_by_save(kit, seen), save_strategy="epoch").save_model()
    kit.keep("seen", seen)


@shared
def zero_3(kit: Kit) -> None:
    """An override of ``_save`` sees the calls of its rank."""
    seen: list[int] = []
    trained(kit, config(3), subclass=seen_by_save(kit, seen), save_strategy="epoch").save_model()
    kit.keep("seen", seen)


OFFLOADED = {"offload_optimizer": {"device": "cpu"}}
"""Needs an optimizer of DeepSpeed's in C++, which it builds for two minutes, once on a machine."""


@shared
def optimizer_is_offloaded(kit: Kit) -> None:
    trained(kit, config(2, zero_optimization=OFFLOADED))


@shared
def parameters_are_offloaded(kit: Kit) -> None:
    """The config's optimizer is DeepSpeed's own too, without ``torch_adam``."""
    sections = {"optimizer": {"type": "AdamW", "params": {"lr": AUTO, "weight_decay": AUTO}}}
    trained(kit, config(3, zero_optimization={**OFFLOADED, "offload_param": {"device": "cpu"}}, **sections))


TORCH_ADAM = {
    "type": "AdamW",
    "params": {"lr": AUTO, "betas": AUTO, "eps": AUTO, "weight_decay": AUTO, "torch_adam": True},
}
WARMUP = {
    "type": "WarmupDecayLR",
    "params": {"warmup_min_lr": AUTO, "warmup_max_lr": AUTO, "warmup_num_steps": AUTO, "total_num_steps": AUTO},
}


@shared
def optimizer_and_schedule_of_the_config(kit: Kit) -> None:
    trained(kit, config(2, optimizer=TORCH_ADAM, scheduler=WARMUP), warmup_steps=2)


@shared
def optimizer_of_the_config(kit: Kit) -> None:
    """Its schedule is ours, made for DeepSpeed's optimizer and stepped by the engine."""
    trained(kit, config(1, optimizer=TORCH_ADAM), lr_scheduler_type="cosine", warmup_steps=1)


@shared
def schedule_of_the_config(kit: Kit) -> None:
    trained(kit, config(3, scheduler=WARMUP), warmup_steps=2, max_grad_norm=0.0)


@shared
def deepspeed_in_bf16(kit: Kit) -> None:
    trained(kit, config(2, bf16={"enabled": AUTO}), bf16=True)


@shared
def deepspeed_in_fp16_without_a_gpu(kit: Kit) -> None:
    """DeepSpeed has its own float16."""
    allow_fp16()
    trained(kit, config(2, fp16={"enabled": AUTO}), fp16=True)


@shared
def zero_0(kit: Kit) -> None:
    trained(kit, config(0))


@shared
def sizes_beside_zero_2(kit: Kit) -> None:
    """Sizes that say how many ranks train on different batches, which DeepSpeed's are anyway."""
    for size in ("dp_replicate_size", "dp_shard_size"):
        trained(kit, config(2), parallelism_config=ParallelismConfig(**{size: 2}))


def _by_lightning(kit: Kit, strategy: str | DeepSpeedStrategy, **fields: Any) -> None:
    """Train with the keyword ``strategy``; under transformers with the DeepSpeed config that it stands for."""
    without_extension()
    ours = kit.which == "ours"
    config = deepspeed_meant(strategy, use_cpu=True)
    given: dict[str, Any] = {"lightning": {"strategy": strategy}} if ours else {}
    fields = {**ACCUMULATION, "num_train_epochs": 2, **fields, **({} if ours else {"deepspeed": config})}
    kit.train(language_model(kit, rows=27, fields=fields, **given))


@shared
def lightnings_name_of_zero_2(kit: Kit) -> None:
    _by_lightning(kit, "deepspeed_stage_2")


@shared
def lightnings_strategy_of_zero_3(kit: Kit) -> None:
    """Its model is created before there is a DeepSpeed config."""
    _by_lightning(kit, DeepSpeedStrategy(stage=3, sub_group_size=1500, reduce_bucket_size=1000), bf16=True)


@shared
def given_optimizer_of_zero_2(kit: Kit) -> None:
    """Trains with AdamW of the arguments."""
    without_extension()
    fields = {**ACCUMULATION, "num_train_epochs": 1, "deepspeed": config(2)}
    model = kit.model(helpers.gpt2)
    given = torch.optim.SGD(model.parameters(), lr=1.0)
    kit.train(language_model(kit, rows=27, fields=fields, model=model, optimizers=(given, None)))


def resumed(kit: Kit, settings: dict[str, Any], **fields: Any) -> None:
    """Go on from the first window of the second epoch, and keep where the run that was not interrupted ended."""
    without_extension()
    fields = {
        **ACCUMULATION,
        "num_train_epochs": 3,
        "save_strategy": "steps",
        "save_steps": 3,
        "deepspeed": settings,
    } | fields
    trainer = resume(kit, lambda each: language_model(each, rows=27, fields=fields), 3)
    kit.keep("weights", trainer.accelerator.get_state_dict(trainer.deepspeed) or {})


@shared
def resume_zero_2(kit: Kit) -> None:
    resumed(kit, config(2))


@shared
def resume_zero_3(kit: Kit) -> None:
    """The schedule is in DeepSpeed's files."""
    resumed(kit, config(3, scheduler=WARMUP), warmup_steps=1)


def _in_background(kit: Kit, build: Callable[..., Any]) -> None:
    """Train twice with the Trainer that ``build`` makes of more fields: saving at once, and while it trains on."""
    without_extension()
    for name in ("at once", "later"):
        later = {"save_async": name == "later", "output_dir": f"{kit.output_dir}/{name}"}
        torch.manual_seed(0)
        importlib.import_module("deepspeed").zero.Init.param_id = 0  # files hold the numbers
        held(build(save_strategy="steps", save_steps=2, **later)).train()


def _partitioned(kit: Kit, settings: dict[str, Any], **chosen: Any) -> Callable[..., Any]:
    """Return what makes a Trainer that saves three times."""
    every = {**ACCUMULATION, "num_train_epochs": 2, "deepspeed": settings, **chosen}
    return lambda **fields: language_model(kit, rows=27, fields={**every, **fields})


@shared
def zero_2_in_the_background(kit: Kit) -> None:
    """DeepSpeed clones weights before training goes on: not for the three saves in the background."""
    from deepspeed.checkpoint import utils

    clone, cloned = utils.clone_tensors_for_torch_save, []

    def counting(item: Any, *given: Any) -> Any:
        if isinstance(item, dict):  # not its tensors, which it clones by calling itself
            cloned.append(item)
        return clone(item, *given)

    utils.clone_tensors_for_torch_save = counting
    try:
        _in_background(kit, _partitioned(kit, config(2)))
    finally:
        utils.clone_tensors_for_torch_save = clone
    kit.keep("clones", len(cloned))


@shared
def zero_3_in_the_background(kit: Kit) -> None:
    _in_background(kit, _partitioned(kit, config(3, scheduler=WARMUP), warmup_steps=1))


@shared
def parts_in_the_background(kit: Kit) -> None:
    in_parts = config(3, zero_optimization={"stage3_gather_16bit_weights_on_model_save": False})
    _in_background(kit, _partitioned(kit, in_parts))


@shared
def best_model_of_deepspeed(kit: Kit) -> None:
    """The rate is so high that the best model is not the last."""
    cadence = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    best = {"load_best_model_at_end": True, "learning_rate": 0.5, "save_total_limit": 1}
    trainer = trained(kit, config(3), **cadence, **best)
    kit.evaluate(trainer)


@shared
def weights_stay_in_parts(kit: Kit) -> None:
    """An override of ``_save`` sees its calls, without weights; a file of weights that it writes does not stay."""
    settings = config(3, zero_optimization={"stage3_gather_16bit_weights_on_model_save": False})
    without_extension()
    seen: list[int] = []

    class Writes(seen_by_save(kit, seen)):  # type: ignore[misc]  # the base is the kit's
        def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
            super()._save(output_dir, state_dict=state_dict)
            if self.args.should_save:
                for name in ("pytorch_model.bin", "own.txt"):
                    Path(str(output_dir), name).write_text("")

    trainer = language_model(kit, fields={"save_strategy": "epoch", "deepspeed": settings}, subclass=Writes)
    kit.train(trainer)
    trainer.save_model()
    kit.keep("seen", seen)


@shared
def parts_are_written_once(kit: Kit) -> None:
    """Keep into which folders DeepSpeed writes: a checkpoint, and one folder that is saved to twice."""
    settings = config(3, zero_optimization={"stage3_gather_16bit_weights_on_model_save": False})
    without_extension()
    engine, seen = importlib.import_module("deepspeed").DeepSpeedEngine, []
    save = engine.save_checkpoint

    def watched(self: Any, folder: str, **given: Any) -> Any:
        seen.append("checkpoint" if "partial-" in folder else Path(folder).name)
        return save(self, folder, **given)

    engine.save_checkpoint = watched
    try:
        trainer = language_model(kit, fields={"save_strategy": "epoch", "deepspeed": settings})
        trainer.train()
        for _ in range(2):
            trainer.save_model(f"{kit.output_dir}/mine")
    finally:
        engine.save_checkpoint = save
    kit.keep("folders", seen)


def _with_lora(kit: Kit, settings: dict[str, Any], *, subclass: Any = None, **fields: Any) -> Any:
    """Return a Trainer of LoRA, all of whose weights decay: DeepSpeed drops the group that would be empty otherwise."""
    from peft import LoraConfig, get_peft_model

    without_extension()
    adapter = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = kit.model(lambda: get_peft_model(helpers.gpt2(), adapter))
    every = {**ACCUMULATION, "num_train_epochs": 2, "weight_decay": 0.1, "save_strategy": "epoch", **fields}
    return language_model(kit, rows=27, fields={**every, "deepspeed": settings}, model=model, subclass=subclass)


def _lora(kit: Kit, settings: dict[str, Any]) -> Any:
    seen: list[int] = []
    trainer = _with_lora(kit, settings, subclass=seen_by_save(kit, seen))
    kit.train(trainer)
    trainer.save_model()
    kit.keep("seen", seen)
    return trainer


@shared
def lora_under_zero_3(kit: Kit) -> None:
    trainer = _lora(kit, config(3))
    kit.keep("weights", trainer.accelerator.get_state_dict(trainer.deepspeed) or {})


@shared
def lora_in_the_background(kit: Kit) -> None:
    """ZeRO-2. Adapters are written at once, DeepSpeed's files under ours when training has gone on, or has ended."""
    is_ours = kit.which == "ours"
    fields = {"save_strategy": "steps", "save_steps": 2} | ({"save_async": True} if is_ours else {})
    trainer = _with_lora(kit, config(2), **fields)
    kit.train(held(trainer) if is_ours else trainer)
    kit.keep("weights", trainer.accelerator.get_state_dict(trainer.deepspeed) or {})


@shared
def lora_stays_in_parts(kit: Kit) -> None:
    _lora(kit, config(3, zero_optimization={"stage3_gather_16bit_weights_on_model_save": False}))


def _split(kit: Kit, stage: int, *, subclass: Any = None, zero: Any = None, **fields: Any) -> Any:
    """Return a Trainer of a Llama whose matrices two ranks share, by DeepSpeed.

    Upstream counts what such ranks compute and evaluate once a rank; here nothing is counted, and an evaluation is one
    batch, of which it returns the first rank's samples.
    """
    without_extension()
    halves = {"bf16": {"enabled": AUTO}} if fields.get("bf16") else {}
    settings = config(stage, tensor_parallel={"autotp_size": 2}, zero_optimization=zero or {}, **halves)
    cadence = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 6, "weight_decay": 0.1}
    fields = {**ACCUMULATION, **cadence, "num_train_epochs": 2, **fields, "deepspeed": settings}
    model = kit.model(llama, attention_dropout=0.1)
    trainer = language_model(kit, fields=fields, subclass=subclass, model=model)
    trainer.floating_point_ops = lambda inputs: 0
    return trainer


def split_and_trained(kit: Kit, stage: int, **given: Any) -> Any:
    """Train, evaluate and predict; keep the weights put together, and the sizes."""
    trainer = _split(kit, stage, **given)
    train(kit, trainer)
    kit.keep("weights", trainer.accelerator.get_state_dict(trainer.deepspeed) or {})
    kit.keep("samples per update step", trainer.get_total_train_batch_size(trainer.args))
    kit.keep("size", trainer.get_tp_size())
    kit.keep("parallelism", str(getattr(trainer.accelerator, "parallelism_config", None)))
    return trainer


@shared
def split_by_zero_0(kit: Kit) -> None:
    split_and_trained(kit, 0)


@shared
def split_by_zero_1(kit: Kit) -> None:
    """An override of ``_save`` sees the calls of its rank."""
    seen: list[int] = []
    split_and_trained(kit, 1, subclass=seen_by_save(kit, seen), save_strategy="epoch").save_model()
    kit.keep("seen", seen)


@shared
def split_by_zero_2(kit: Kit) -> None:
    split_and_trained(kit, 2, save_strategy="epoch")


@shared
def split_in_bf16(kit: Kit) -> None:
    split_and_trained(kit, 1, bf16=True)


@shared
def split_averaged_by_batch(kit: Kit) -> None:
    split_and_trained(kit, 1, average_tokens_across_devices=False)


@shared
def split_counted_once(kit: Kit) -> None:
    """Under corrected semantics ranks with the same batches learn the same, whoever counts their tokens."""
    for averages in (True, False):
        trainer = _split(kit, 1, average_tokens_across_devices=averages, semantics="corrected")
        trainer.train()
        kit.keep(averages, trainer.accelerator.get_state_dict(trainer.deepspeed) or {})


@shared
def split_parts_stay(kit: Kit) -> None:
    """The checkpoints contain DeepSpeed's files alone."""
    trainer = _split(kit, 1, zero={"stage3_gather_16bit_weights_on_model_save": False}, save_strategy="epoch")
    kit.train(trainer)
    trainer.save_model()


@shared
def best_of_split(kit: Kit) -> None:
    """The rate is so high that the best model is not the last."""
    cadence = {"eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    trainer = _split(kit, 2, load_best_model_at_end=True, learning_rate=0.5, **cadence)
    kit.train(trainer)
    kit.evaluate(trainer)


@shared
def resume_split(kit: Kit) -> None:
    resume(kit, lambda each: _split(each, 1, save_strategy="steps", save_steps=1, num_train_epochs=3), 4)


@shared
def split_refused(kit: Kit) -> None:
    """A run without split matrices goes on from a checkpoint with them."""
    trainer = _split(kit, 1, max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    whole = language_model(kit, fields={"deepspeed": config(1)}, model=kit.model(llama))
    try:
        whole.train(resume_from_checkpoint=f"{kit.output_dir}/checkpoint-2")
    except CheckpointError as error:
        kit.keep("refused", str(error))


@shared
def split_twice(kit: Kit) -> None:
    """Train a second time, which transformers cannot, and before and after it a model that is not split."""
    without_extension()

    def losses(trainer: Any) -> list[float]:
        trainer.optimizer = None  # as under DeepSpeed, whose optimizers end with their engine
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    def whole() -> list[float]:
        torch.manual_seed(0)
        return losses(language_model(kit, fields={"deepspeed": config(2)}, model=kit.model(llama)))

    before = whole()
    trainer = _split(kit, 1)
    kit.keep("split", [losses(trainer), losses(trainer)])
    kit.keep("whole", [before, whole()])


@shared
def replicas_of_split(kit: Kit) -> None:
    """Four ranks: two of each batch."""
    split_and_trained(kit, 1, gradient_accumulation_steps=2, save_strategy="epoch")


@shared
def split_in_the_background(kit: Kit) -> None:
    _in_background(kit, partial(_split, kit, 1))


@shared
def generates_under_zero_3(kit: Kit) -> None:
    """All ranks call the model as long as one generates, since each has parts of its parameters."""
    without_extension()
    trainer = translator(kit, fields={**GENERATES, "deepspeed": config(3)})
    kit.train(trainer)
    kit.evaluate(trainer, max_length=7)
    kit.predict(trainer, trainer.eval_dataset)


@shared
def weights_alone_of_deepspeed(kit: Kit) -> None:
    trained(kit, config(2), save_only_model=True, save_strategy="epoch")


@shared
def second_model_beside_deepspeed(kit: Kit) -> None:
    without_extension()
    for stage in (2, 3):
        trainer = language_model(kit, fields={"deepspeed": config(stage)})
        kit.keep("refused", second_model(trainer.accelerator))


@shared
def evaluates_without_training(kit: Kit) -> None:
    without_extension()
    trainer = language_model(kit, fields={"deepspeed": config(3)})
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)
    trainer.save_model()


def _again_and_again(kit: Kit, **fields: Any) -> None:
    trainer = language_model(kit, fields=fields)
    trainer.evaluate()
    for _ in range(2):
        trainer.optimizer = None  # as under DeepSpeed, whose optimizers end with their engine
        trainer.train()
        kit.keep("losses", [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    kit.keep("loss", trainer.evaluate()["eval_loss"])


@shared
def evaluates_and_trains_twice(kit: Kit) -> None:
    """Under transformers no training follows a first one, nor an evaluation."""
    without_extension()
    _again_and_again(kit, deepspeed=config(3))


@shared
def evaluates_and_trains_twice_without_deepspeed(kit: Kit) -> None:
    _again_and_again(kit)


def global_batch(kit: Kit, *, size: int, **fields: Any) -> None:
    """Train without dropout on 8 samples an update step, ``size`` of them at a time in each process."""
    chosen = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 2, "num_train_epochs": 3}
    model = kit.model(helpers.gpt2, dropout=0.0)
    kit.train(language_model(kit, rows=24, fields={**chosen, **fields}, model=model))


@shared
def half_a_global_batch_of_zero_3(kit: Kit) -> None:
    without_extension()
    global_batch(kit, size=2, deepspeed=config(3))


@shared
def whole_global_batch_of_zero_2(kit: Kit) -> None:
    without_extension()
    global_batch(kit, size=4, deepspeed=config(2))


class Leaves:
    """Leaves a mark as soon as it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("was-run"),))


def _refused(kit: Kit, checkpoint: Path, name: str, change: Callable[[Path], Any]) -> None:
    """Keep why a run does not go on from ``checkpoint`` once the main process has changed it."""
    trainer = language_model(kit, fields={"deepspeed": config(2)})
    if trainer.is_world_process_zero():
        change(checkpoint)
    trainer.accelerator.wait_for_everyone()
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except CheckpointError as error:
        kit.keep(name, str(error))
    trainer.accelerator.wait_for_everyone()


@shared
def refused_checkpoints(kit: Kit) -> None:
    """The files of a checkpoint hold code, are two of three processes', or none of DeepSpeed's."""
    without_extension()
    os.chdir(kit.folder)
    trainer = language_model(kit, fields={"deepspeed": config(2), "save_strategy": "epoch"})
    trainer.train()
    (checkpoint,) = Path(kit.output_dir).glob("checkpoint-*")
    (states,) = checkpoint.glob("global_step*")
    part = states / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    part = part if part.is_file() else states / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    model = states / "mp_rank_00_model_states.pt"
    content = torch.load(model, weights_only=False)
    trainer.accelerator.wait_for_everyone()  # until all have read it, before it is changed
    _refused(kit, checkpoint, "processes", lambda _: torch.save({**content, "dp_world_size": 3}, model))
    _refused(kit, checkpoint, "code", lambda _: (torch.save(content, model), torch.save(Leaves(), part)))
    kit.keep("was run", Path("was-run").exists())
    _refused(kit, checkpoint, "outside", lambda _: (checkpoint / "latest").write_text("../elsewhere"))
    _refused(kit, checkpoint, "none", lambda _: (checkpoint / "latest").unlink())
