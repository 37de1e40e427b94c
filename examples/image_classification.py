"""Train a small vision transformer on handwritten digits, with a running average of its weights, in a few seconds.

transformers' Trainer has no averaged weights; Lightning has, and its callback goes into ``callbacks`` like any other.
Evaluations and checkpoints have the average. The digits come with scikit-learn:

    pip install -e ".[transformers]" scikit-learn
    python examples/image_classification.py [output folder]
"""

import sys

import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from sklearn.datasets import load_digits

from hf_compat import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

NUM_EVAL, EPOCHS = 500, 8


def samples():
    """Return the pictures, 8 by 8 pixels between -1 and 1, and their labels, as a train and an evaluation split."""
    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    rows = [{"pixel_values": image, "labels": int(label)} for image, label in zip(pixels, digits.target, strict=True)]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    return [rows[index] for index in order[NUM_EVAL:]], [rows[index] for index in order[:NUM_EVAL]]


def accuracy(prediction):
    """Return the fraction of pictures that are classified correctly."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def train(folder, callbacks):
    """Train with ``callbacks``; return the Trainer, and the accuracy before training and after each epoch."""
    set_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **sizes))
    args = TrainingArguments(
        folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=NUM_EVAL,
        learning_rate=2e-3,
        lr_scheduler_type="constant_with_warmup",  # the average takes the place of a decay
        warmup_steps=20,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
    )
    train_split, eval_split = samples()
    trainer = Trainer(model, args, None, train_split, eval_split, compute_metrics=accuracy, callbacks=callbacks)
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    return trainer, [before, *(log["eval_accuracy"] for log in trainer.state.log_history if "eval_accuracy" in log)]


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "image_classification_output"
    _, plain = train(folder, [])
    trainer, averaged = train(folder, [EMAWeightAveraging(decay=0.98)])

    found = trainer.predict(trainer.eval_dataset[:6])
    print()
    for row in range(8):
        lines = [sample["pixel_values"][0, row] for sample in trainer.eval_dataset[:6]]
        print("   ".join("".join(" .:oO@"[int((pixel + 1) * 2.5)] for pixel in line) for line in lines))
    print("   ".join(f"a {label}     " for label in found.predictions.argmax(-1)))
    print("\nafter epoch  " + "  ".join(f"{epoch:5}" for epoch in range(EPOCHS + 1)))
    print("last weights " + "  ".join(f"{value:5.1%}" for value in plain))
    print("averaged     " + "  ".join(f"{value:5.1%}" for value in averaged))
    print(
        f"\naccuracy {averaged[0]:.1%} -> {averaged[-1]:.1%} on {NUM_EVAL} held-out digits with averaged weights, "
        f"{plain[-1]:.1%} with the last"
    )


if __name__ == "__main__":
    main()
