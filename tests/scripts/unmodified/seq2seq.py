"""A script for transformers' Seq2SeqTrainer: evaluations that generate, and predictions at the end."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration, set_seed


def rows(number, seed):
    drawn = np.random.default_rng(seed).integers(2, 24, (number, 6))
    return [{"input_ids": row.tolist(), "labels": row[::-1][:4].tolist()} for row in drawn]


def lengths(prediction):
    return {"generated": float((prediction.predictions > 0).sum(-1).mean())}


def main(output):
    torch.set_num_threads(1)
    args = Seq2SeqTrainingArguments(
        output,
        max_steps=6,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        predict_with_generate=True,
        generation_max_length=7,
        generation_num_beams=2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    set_seed(args.seed)
    config = T5Config(
        vocab_size=24,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    trainer = Seq2SeqTrainer(
        model=T5ForConditionalGeneration(config),
        args=args,
        train_dataset=rows(12, 0),
        eval_dataset=rows(4, 1),
        compute_metrics=lengths,
    )
    trainer.train(resume_from_checkpoint=True if "--resume" in sys.argv else None)
    trainer.save_model()
    trainer.save_state()
    predicted = trainer.predict(rows(4, 2))
    Path(output, "predictions.json").write_text(json.dumps(predicted.predictions.tolist()))


if __name__ == "__main__":
    main(sys.argv[1])
