"""A run that a cluster takes the machine from, twice: it ends with the weights of one that nothing interrupted.

A small recurrent network learns the bytes of the manual that comes with Python (``help("topics")``). The script starts
itself three times: the first run gets SIGTERM, the second is killed, the third finishes. About a minute on two cores:

    pip install -e .
    python examples/preemption.py [output folder]
"""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn

from hf_compat import Trainer, TrainingArguments, get_last_checkpoint, set_seed

LENGTH, WIDTH, STEPS = 64, 96, 150


class Bytes(nn.Module):
    """Predicts each byte of a text from those before it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.recurrence = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text, labels):
        states, _ = self.recurrence(self.embedding(text))
        logits = self.head(self.dropout(states))
        return {"loss": nn.functional.cross_entropy(logits.transpose(1, 2), labels), "logits": logits}


def samples():
    """Return pieces of the manual: ``LENGTH`` bytes, and as labels those one further on."""
    manual = "".join(topics[name] for name in sorted(topics)).encode()
    text = torch.frombuffer(bytearray(manual), dtype=torch.uint8).long()
    starts = range(0, len(text) - LENGTH - 1, LENGTH)
    return [{"text": text[start : start + LENGTH], "labels": text[start + 1 : start + LENGTH + 1]} for start in starts]


def train(folder):
    """Train in ``folder``, from its newest checkpoint if there is one."""
    set_seed(0)
    rows = samples()
    args = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=32,
        learning_rate=5e-3,
        save_steps=25,
        save_total_limit=2,
        logging_steps=25,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(Bytes(), args, train_dataset=rows[500:], eval_dataset=rows[:500])
    trainer.train(resume_from_checkpoint="auto")
    loss = trainer.evaluate()["eval_loss"]
    torch.save({"weights": trainer.model.state_dict(), "bits": loss / math.log(2)}, Path(folder, "result.pt"))


def start(folder):
    """Start a process that trains in ``folder``."""
    return subprocess.Popen([sys.executable, __file__, "--train", folder], stdout=subprocess.DEVNULL)


def stop(process, folder, after, by):
    """Send the signal ``by`` when the checkpoint of update step ``after`` is there; return the exit status."""
    while process.poll() is None and not Path(folder, f"checkpoint-{after}").exists():
        time.sleep(0.05)
    os.kill(process.pid, by)
    return process.wait()


def main():
    """Train without and with interruptions, and compare."""
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "preemption_output").resolve()
    whole, interrupted = output / "whole", output / "interrupted"
    if output.exists():
        sys.exit(f"{output} exists; pass another folder.")
    whole.mkdir(parents=True)
    interrupted.mkdir()
    start(whole).wait()
    for after, by in ((25, signal.SIGTERM), (75, signal.SIGKILL)):
        status = stop(start(interrupted), interrupted, after, by)
        newest = Path(get_last_checkpoint(interrupted)).name
        print(f"{by.name} after step {after}: exit status {status}, newest {newest}")
    start(interrupted).wait()
    first, second = (torch.load(folder / "result.pt") for folder in (whole, interrupted))
    equal = all(torch.equal(value, second["weights"][name]) for name, value in first["weights"].items())
    print(f"bits per byte of held-out text: {first['bits']:.3f} and {second['bits']:.3f}")
    print(f"the weights are equal: {equal}")


if __name__ == "__main__":
    train(sys.argv[2]) if sys.argv[1:2] == ["--train"] else main()
