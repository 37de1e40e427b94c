"""Summarise reports of football matches with a small T5, trained from nothing; evaluations generate the summaries.

``Seq2SeqTrainer`` with ``predict_with_generate``. The reports are made here; the goals stand in them, who won does not.
Nothing is downloaded:

    pip install -e ".[transformers]"
    python examples/summarization.py [output folder]
"""

import random
import sys

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from hf_compat import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

TEAMS = ["Ajax", "Basel", "Celtic", "Dinamo", "Everton", "Fulham"]
PLAYERS = ["Ann", "Bea", "Cleo", "Dora", "Eve", "Fay", "Gwen", "Ida"]
OTHERWISE = ["{} missed a penalty .", "a yellow card for {} .", "{} hit the bar ."]
NUM_EVAL, NUM_TRAIN, STEPS = 200, 6000, 600


def match(draw):
    """Return the report of a match, with the score after each goal, and its summary."""
    (home, away), goals = draw.sample(TEAMS, 2), [0, 0]
    report, scorer = [f"{home} received {away} ."], None
    for player in draw.choices(PLAYERS, k=draw.randint(1, 5)):
        if draw.random() < 0.5:
            goals[draw.randrange(2)] += 1
            report.append(f"{player} scored , {goals[0]} : {goals[1]} .")
            scorer = player
        else:
            report.append(draw.choice(OTHERWISE).format(player))
    verb = "beat" if goals[0] > goals[1] else "lost to" if goals[0] < goals[1] else "drew with"
    last = f" , the last goal by {scorer}" if scorer else ""
    return " ".join(report), f"{home} {verb} {away} {goals[0]} : {goals[1]}{last}"


def tokenizer_of(texts):
    """Return a tokenizer with a token for each word."""
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def main():
    draw = random.Random(0)
    matches = [match(draw) for _ in range(NUM_EVAL + NUM_TRAIN)]
    tokenizer = tokenizer_of(text for pair in matches for text in pair)
    rows = [
        {"input_ids": tokenizer(report)["input_ids"], "labels": tokenizer(f"{summary} </s>")["input_ids"]}
        for report, summary in matches
    ]

    def right(prediction):
        """Return the fraction of the summaries that are right in every word."""
        labels = np.where(prediction.label_ids == -100, tokenizer.pad_token_id, prediction.label_ids)
        texts = [tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (prediction.predictions, labels)]
        return {"right": float(np.mean([found == given for found, given in zip(*texts, strict=True)]))}

    set_seed(0)
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **sizes, **special))
    args = Seq2SeqTrainingArguments(
        sys.argv[1] if len(sys.argv) > 1 else "summarization_output",
        max_steps=STEPS,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=100,
        learning_rate=2e-3,
        warmup_steps=50,
        logging_steps=100,
        eval_strategy="steps",
        eval_steps=STEPS // 2,
        save_strategy="no",
        predict_with_generate=True,
        generation_max_length=16,
        report_to="none",
    )
    trainer = Seq2SeqTrainer(
        model,
        args,
        train_dataset=rows[NUM_EVAL:],
        eval_dataset=rows[:NUM_EVAL],
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        compute_metrics=right,
    )
    before = trainer.evaluate()["eval_right"]
    trainer.train()
    after = trainer.evaluate()["eval_right"]
    written = trainer.predict(rows[:3]).predictions
    for (report, _), summary in zip(matches, tokenizer.batch_decode(written, skip_special_tokens=True), strict=False):
        print(f"\n{report}\n    {summary}")
    print(f"\nsummaries without a mistake {before:.1%} -> {after:.1%} of {NUM_EVAL} held-out matches")


if __name__ == "__main__":
    main()
