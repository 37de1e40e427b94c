"""Started on two ranks: ``HFCheckpoints`` follows a metric that each rank logs another value of.

Rank 0 writes the best metric that each rank knows into ``FOLDER/best.json``.
"""

import json
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

from hf_compat.lightning import HFCheckpointIO, HFCheckpoints
from tests.scripts.single_callbacks_script import Classifier, loader
from tests.support.helpers import vector_rows


class LogsItsOwn(lightning.Callback):
    """Logs a value that only rank 0 takes for better than the one before."""

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("own", float(trainer.current_epoch) * (-1 if trainer.global_rank == 0 else 1))


folder = Path(sys.argv[1])
checkpoints = HFCheckpoints(folder / "out", every_n_steps=100, monitor="own")
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="gloo"),
    max_epochs=3,
    callbacks=[LogsItsOwn(), checkpoints],
    plugins=[HFCheckpointIO()],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
torch.manual_seed(0)
trainer.fit(Classifier(), loader(vector_rows(16)), loader(vector_rows(8)))
known = [None, None]
torch.distributed.all_gather_object(known, [checkpoints.best_metric, Path(checkpoints.best_model_path).name])
if trainer.global_rank == 0:
    (folder / "best.json").write_text(json.dumps(known))
torch.distributed.destroy_process_group()  # its threads would abort an interpreter that exits meanwhile
