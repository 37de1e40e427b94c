"""Trainings in two workers of Ray Train, which one of them may leave once; see ``test_ray_train.py``.

Arguments: a folder, and the names of trainings in ``TRAININGS``. Each writes to ``<name>.json`` what rank 0 has seen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "num_train_epochs": 2,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_steps": 2,
    "dataloader_pin_memory": False,
}


def worker(config: dict[str, Any]) -> None:
    """Train in one of Ray's workers."""
    import importlib

    import ray
    import torch
    from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
    from transformers import TrainerCallback

    from tests.support import helpers

    warnings.simplefilter("ignore")
    library = importlib.import_module(config["library"])
    rank, lost = ray.train.get_context().get_world_rank(), Path(config["folder"], f"{config['name']}-lost")
    known = Path(config["folder"], "ray", config["name"], "checkpoint_manager_snapshot.json")

    class Leaving(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if config["loses"] and (rank, state.global_step) == (1, 5) and not lost.exists():
                while not known.exists():  # Ray's controller reads reports now and then, of a killed worker no more
                    time.sleep(0.1)
                lost.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    if "deepspeed" in config["fields"] or config["strategy"] == "RayDeepSpeedStrategy":
        from tests.support.deepspeed_tools import without_extension

        without_extension()
    torch.manual_seed(0)
    output = Path(config["folder"], f"{config['name']}-output")
    args = library.TrainingArguments(str(output), **SETTINGS, **config["fields"])
    more = {} if config["strategy"] is None else {"lightning": lightning_keywords(config["strategy"])}
    trainer = library.Trainer(
        helpers.gpt2(),
        args,
        train_dataset=helpers.ListDataset(helpers.token_rows(20)),
        eval_dataset=helpers.ListDataset(helpers.token_rows(7, seed=1)),
        data_collator=helpers.PadCollator(),
        callbacks=[RayTrainReportCallback(), Leaving()],
        **more,
    )
    trainer = prepare_trainer(trainer)
    before = ray.train.get_checkpoint()
    if before is None:
        trainer.train()
    else:
        with before.as_directory() as folder:
            trainer.train(resume_from_checkpoint=str(Path(folder, RayTrainReportCallback.CHECKPOINT_NAME)))
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if rank == 0:
        names = ("loss", "grad_norm", "learning_rate", "eval_loss")
        seen = {
            "logs": [entry[name] for entry in trainer.state.log_history for name in names if name in entry],
            "weights": {name: value.tolist() for name, value in weights.items()},
            "wrapped": type(trainer.model_wrapped).__name__,
            "resumed": before is not None,
        }
        Path(config["folder"], f"{config['name']}.json").write_text(json.dumps(seen))


def lightning_keywords(strategy: str) -> dict[str, Any]:
    """Return what a script for Lightning under Ray passes to a Lightning trainer."""
    import ray.train.lightning

    plugins = [ray.train.lightning.RayLightningEnvironment()]
    return {"strategy": getattr(ray.train.lightning, strategy)(), "plugins": plugins, "devices": "auto"}


def pieces(config: dict[str, Any]) -> None:
    """Train with a Lightning trainer as Ray's pages build it, and the parts of a run."""
    import lightning
    import ray
    import torch
    from ray.train.lightning import prepare_trainer

    import hf_compat.lightning
    from tests.support import helpers

    warnings.simplefilter("ignore")
    args = hf_compat.TrainingArguments(str(Path(config["folder"], f"{config['name']}-output")), **SETTINGS)
    torch.manual_seed(0)
    module = hf_compat.lightning.HFModule(helpers.gpt2())
    callbacks = hf_compat.lightning.callbacks(args)
    data = hf_compat.lightning.HFDataModule(
        train_dataset=helpers.ListDataset(helpers.token_rows(20)),
        eval_dataset=helpers.ListDataset(helpers.token_rows(7, seed=1)),
        data_collator=helpers.PadCollator(),
    )
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=-1, callbacks=callbacks, **lightning_keywords(config["strategy"]), **quiet)
    trainer = prepare_trainer(trainer)
    trainer.fit(module, datamodule=data)
    if ray.train.get_context().get_world_rank() == 0:
        weights = {name: value.tolist() for name, value in module.model.state_dict().items()}
        seen = {"weights": weights, "step": trainer.global_step}
        Path(config["folder"], f"{config['name']}.json").write_text(json.dumps(seen))


PLAIN: dict[str, Any] = {"library": "hf_compat", "fields": {}, "strategy": None, "loses": False}
ZERO: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "ours": PLAIN,
    "upstream": PLAIN | {"library": "transformers"},
    "ours_lost": PLAIN | {"loses": True},
    "fsdp": PLAIN | {"fields": {"fsdp": True, "fsdp_config": {"version": 1, "auto_wrap_policy": "NO_WRAP"}}},
    "ddp_of_ray": PLAIN | {"strategy": "RayDDPStrategy"},
    "fsdp_of_ray": PLAIN | {"strategy": "RayFSDPStrategy"},
    "zero": PLAIN | {"fields": {"deepspeed": ZERO}},
    "zero_of_ray": PLAIN | {"strategy": "RayDeepSpeedStrategy"},
    "pieces_ours": PLAIN | {"strategy": "RayDDPStrategy"},
}


def main(folder: str, *names: str) -> None:
    """Run the trainings one after the other."""
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver="RAY_SHOWS" in os.environ)
    for name in names:
        trainer = TorchTrainer(
            pieces if name.startswith("pieces") else worker,
            train_loop_config={"folder": folder, "name": name, **TRAININGS[name]},
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(
                name=name,
                storage_path=f"{folder}/ray",
                failure_config=FailureConfig(max_failures=1),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
            ),
        )
        trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
