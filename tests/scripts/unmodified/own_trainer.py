"""A script for transformers' Trainer: a Trainer of its own with its own loss and logs, and a callback of its own."""

import sys

import torch
from torch import nn
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
)
from transformers.trainer import Trainer
from transformers.trainer_utils import IntervalStrategy


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(8, 3)

    def forward(self, input_ids):
        return {"logits": self.classifier(self.dropout(self.embedding(input_ids).mean(1)))}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        words = torch.arange(5).mul(index + 3).remainder(16)
        return {"input_ids": words, "labels": torch.tensor(index % 3)}


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weights = torch.tensor([1.0, 2.0, 0.5])
        loss = nn.functional.cross_entropy(outputs["logits"], labels, weight=weights)
        return (loss, outputs) if return_outputs else loss

    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = get_cosine_schedule_with_warmup(optimizer or self.optimizer, 2, num_training_steps)
        return self.lr_scheduler

    def log(self, logs, *others, **more):
        super().log({**logs, "tens": self.state.global_step // 10}, *others, **more)


class SaveAtThird(TrainerCallback):
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        control.should_save = state.global_step == 3
        return control


def main(output):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    args = TrainingArguments(
        output_dir=output,
        num_train_epochs=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy=IntervalStrategy.NO,
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = WeightedTrainer(model=Words(), args=args, train_dataset=Rows(), callbacks=[SaveAtThird])
    trainer.train(resume_from_checkpoint="--resume" in sys.argv)
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main(sys.argv[1])
