"""Learn to read digits although four in ten labels are wrong: a loss of one's own in ``compute_loss``.

Cross entropy learns the wrong labels by heart in the end. The generalized cross entropy (Zhang and Sabuncu, 2018) gives
less weight to what the model finds unlikely. The model is plain torch; the digits come with scikit-learn:

    pip install -e . scikit-learn
    python examples/custom_loss.py [output folder]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

from hf_compat import Trainer, TrainingArguments, set_seed

NUM_EVAL, WRONG, POWER = 500, 0.4, 0.7


class Reader(nn.Module):
    """Two hidden layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, pixels, labels):
        logits = self.layers(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class RobustTrainer(Trainer):
    """Trains with ``(1 - p**POWER) / POWER``, where p is the probability of the label that is given."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        given = outputs["logits"].softmax(-1).gather(1, inputs["labels"].unsqueeze(1))
        loss = ((1 - given**POWER) / POWER).mean()
        return (loss, outputs) if return_outputs else loss


def samples():
    """Return the pictures with their labels: to train on with wrong ones among them, to evaluate on with the right."""
    digits = load_digits()
    pixels, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=draw)
    pixels, labels = pixels[order], labels[order]
    wrong = torch.rand(len(labels), generator=draw) < WRONG
    wrong[:NUM_EVAL] = False
    labels = torch.where(wrong, (labels + torch.randint(1, 10, labels.shape, generator=draw)) % 10, labels)
    rows = [{"pixels": image, "labels": label} for image, label in zip(pixels, labels, strict=True)]
    return rows[NUM_EVAL:], rows[:NUM_EVAL]


def accuracy(prediction):
    """Return the fraction of pictures that are read correctly."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def train(kind, folder):
    """Train with the Trainer ``kind``; return the accuracy before and after."""
    set_seed(0)
    args = TrainingArguments(
        folder,
        num_train_epochs=50,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=NUM_EVAL,
        learning_rate=5e-3,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )
    train_split, eval_split = samples()
    trainer = kind(Reader(), args, train_dataset=train_split, eval_dataset=eval_split, compute_metrics=accuracy)
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    return before, trainer.evaluate()["eval_accuracy"]


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "custom_loss_output"
    before, usual = train(Trainer, folder)
    _, robust = train(RobustTrainer, folder)
    print(
        f"\naccuracy {before:.1%} untrained, {usual:.1%} with cross entropy, {robust:.1%} with the robust loss "
        f"on {NUM_EVAL} held-out digits; {WRONG:.0%} of the training labels are wrong"
    )


if __name__ == "__main__":
    main()
