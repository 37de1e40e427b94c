"""A script for transformers' Trainer: arguments from the command line, metrics, evaluation, checkpoints, resuming."""

import sys
from dataclasses import dataclass, field

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class DataArguments:
    rows: int = field(default=24, metadata={"help": "Rows of the training data."})
    words: int = field(default=8, metadata={"help": "Words of a row."})


def rows(number: int, words: int, seed: int) -> Dataset:
    drawn = np.random.default_rng(seed).integers(1, 32, (number, words))
    return Dataset.from_dict({"input_ids": drawn.tolist(), "labels": (drawn.sum(1) % 2).tolist()})


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    torch.set_num_threads(1)
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    data, args = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=32, max_position_embeddings=16, **sizes))
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=rows(data.rows, data.words, 0) if args.do_train else None,
        eval_dataset=rows(6, data.words, 1),
        data_collator=default_data_collator,
        compute_metrics=accuracy,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=9)] if args.load_best_model_at_end else None,
    )
    if args.do_train:
        result = trainer.train(
            resume_from_checkpoint=args.resume_from_checkpoint or get_last_checkpoint(args.output_dir)
        )
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if args.do_eval:
        trainer.save_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    sys.exit(main())
