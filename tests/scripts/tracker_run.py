"""Trains, evaluates and predicts with trackers: ``tracker_run.py upstream|ours NAMES OUT``; run in an empty folder.

With a fourth argument "first" it saves a checkpoint at update step 4; with "resumed" it goes on from that. Names that
are none of transformers' are Aim's, whose own callback for transformers' Trainer is passed, and Lightning's loggers.
"""

import sys

import torch

which, trackers, output_dir, part = sys.argv[1], sys.argv[2].split(","), sys.argv[3], [*sys.argv[4:], ""][0]
if which == "upstream":
    from transformers import Trainer, TrainingArguments
else:
    from hf_compat import Trainer, TrainingArguments

from transformers import BertConfig, BertForSequenceClassification  # noqa: E402  (after the Trainer's own imports)

callbacks, keywords = [], {}
if "aim" in trackers:
    from aim.hugging_face import AimCallback

    trackers.remove("aim")
    callbacks = [AimCallback(system_tracking_interval=None, log_system_params=False, capture_terminal_logs=False)]
if "swanlab" in trackers:
    import swanlab

    swanlab.init(mode="offline")  # transformers' callback asks for the run, which fails without one
if "CSVLogger" in trackers:
    from lightning.pytorch.loggers import CSVLogger

    trackers.remove("CSVLogger")
    keywords = {"lightning": {"logger": CSVLogger("csv")}}

torch.manual_seed(0)
config = BertConfig(
    vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
    max_position_embeddings=16, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
rows = [{"input_ids": torch.arange(6) + row, "labels": torch.tensor(row % 2)} for row in range(16)]
args = TrainingArguments(
    output_dir, num_train_epochs=2, per_device_train_batch_size=4, logging_steps=2, eval_strategy="epoch",
    save_strategy="epoch" if part == "first" else "no", use_cpu=True, disable_tqdm=True, report_to=trackers or "none",
    run_name="a run", dataloader_pin_memory=False,
)  # fmt: skip
if "tensorboard" in trackers and getattr(args, "logging_dir", None):  # else named by the second
    args.logging_dir = f"{output_dir}/runs/{part}"
trainer = Trainer(
    BertForSequenceClassification(config),
    args,
    train_dataset=rows,
    eval_dataset=rows[:6],
    callbacks=callbacks,
    compute_metrics=lambda seen: {"accuracy": float((seen.predictions.argmax(-1) == seen.label_ids).mean())},
    **keywords,
)
trainer.train(resume_from_checkpoint=f"{output_dir}/checkpoint-4" if part == "resumed" else None)
trainer.evaluate()
trainer.predict(rows[:4])
if "mlflow" in trackers:
    import mlflow

    mlflow.flush_async_logging()  # else what is still on its way is lost when the interpreter ends first
