"""The pieces of a run for a ``lightning.Trainer`` of one's own; see docs/taking_apart.md.

With training arguments ``args``:

    module, data = HFModule(model), HFDataModule(train_dataset=rows, eval_dataset=held_out)
    lightning.Trainer(max_epochs=-1, callbacks=callbacks(args)).fit(module, datamodule=data)
"""

from hf_compat.engine.checkpoint_io import HFCheckpointIO
from hf_compat.engine.module import HFDataModule, HFModule
from hf_compat.engine.process_layout import use_cluster_environment
from hf_compat.lightning.components import (
    GradientNorm,
    HFCheckpoints,
    NEFTune,
    PreemptionSaving,
    ResumableLoader,
    UpdateStepLogs,
)
from hf_compat.trainer.pieces import StandaloneRun, callbacks, to_lightning

RunGroup = StandaloneRun  # its former name

__all__ = [
    "GradientNorm",
    "HFCheckpointIO",
    "HFCheckpoints",
    "HFDataModule",
    "HFModule",
    "NEFTune",
    "PreemptionSaving",
    "ResumableLoader",
    "StandaloneRun",
    "UpdateStepLogs",
    "callbacks",
    "to_lightning",
    "use_cluster_environment",
]
