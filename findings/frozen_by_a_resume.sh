#!/usr/bin/env bash
# A backbone that was being fine-tuned is frozen after a resume, and never trained again.
#
# Versions:  torch 2.13.0, lightning 2.6.6; Python 3.11 on a CPU
# Behaviour: `BackboneFinetuning` freezes the backbone in `setup`. A resume brings the parameter groups back into the
#            optimizer, with their averages, and does not unfreeze what is in them: no gradient, no step, no message.
# Seen:      unfrozen in epoch 1, saved after epoch 2: the unbroken run goes on to change the backbone in epoch 3, the
#            resumed one leaves it as it was saved.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0 lightning==2.6.6
run <<'PYTHON'
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BackboneFinetuning, ModelCheckpoint


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.head = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def training_step(self, batch):
        return self.head(self.backbone(batch)).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW((one for one in self.parameters() if one.requires_grad), lr=0.1)


def fit(epochs, ckpt_path=None, save=False):
    module = Module()
    callbacks = [BackboneFinetuning(unfreeze_backbone_at_epoch=1, backbone_initial_lr=0.01)]
    callbacks += [ModelCheckpoint(".", save_last=True)] if save else []
    trainer = Trainer(accelerator="cpu", max_epochs=epochs, logger=False, callbacks=callbacks,
                      enable_checkpointing=save, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(3, 1)), ckpt_path=ckpt_path)
    backbone = [float(parameter) for parameter in module.backbone.parameters()]
    print(f"after {trainer.current_epoch} epochs, resumed: {ckpt_path is not None}; backbone: {backbone}, "
          f"trained: {module.backbone.weight.requires_grad}")
    return backbone


saved, unbroken = fit(3, save=True), fit(4)
resumed = fit(4, ckpt_path="last.ckpt")
assert resumed == saved != unbroken
PYTHON
