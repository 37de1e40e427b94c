"""TRL's SFTTrainer on Lightning: a run that is preempted, then killed, ends with the weights of one that is not.

A tiny Llama learns the manual that comes with Python (``help("topics")``), word by word. Checkpoints are saved in the
background, and Lightning's CSVLogger draws the curves. The script starts itself four times: one run that nothing
interrupts, and one that gets SIGTERM, is started again, is killed, and is started again. About a minute on two cores:

    pip install -e ".[ecosystem]"
    python examples/trl_sft.py [output folder]
"""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

LENGTH, STEPS, SAVED_EVERY = 32, 40, 10


def tokenizer_for(texts):
    """Return a tokenizer that knows the words of ``texts``."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    core = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=2000, special_tokens=[*special.values()]))
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=LENGTH, **special)


def train(folder):
    """Train in ``folder``, from its newest checkpoint if there is one."""
    import hf_compat

    hf_compat.install()  # before TRL is imported: its trainers derive from ours then
    from datasets import Dataset
    from lightning.pytorch.loggers import CSVLogger
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    texts = [text for name in sorted(topics) for text in topics[name].split("\n\n") if len(text) > 100]
    tokenizer = tokenizer_for(texts)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    hf_compat.set_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), attention_dropout=0.1, pad_token_id=0, **sizes))
    args = SFTConfig(
        folder,
        max_length=LENGTH,
        max_steps=STEPS,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        save_steps=SAVED_EVERY,
        save_total_limit=2,
        save_async=True,
        logging_steps=5,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    with hf_compat.lightning_keywords(logger=CSVLogger(folder, name="curves")):
        rows = Dataset.from_dict({"text": texts})
        trainer = SFTTrainer(model, args, train_dataset=rows, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint="auto")
    trainer.save_model()


def start(folder):
    """Start a process that trains in ``folder``."""
    return subprocess.Popen([sys.executable, __file__, "--train", folder], stdout=subprocess.DEVNULL)


def stop(process, folder, after, by):
    """Send the signal ``by`` when the checkpoint of update step ``after`` is there; return the exit status."""
    while process.poll() is None and not Path(folder, f"checkpoint-{after}").exists():
        time.sleep(0.05)
    os.kill(process.pid, by)
    return process.wait()


def losses(folder):
    """Return the first and the last loss that Lightning's logger wrote in ``folder``."""
    rows = [row for path in sorted(folder.glob("curves/*/metrics.csv")) for row in csv.DictReader(path.open())]
    found = [row["train/loss"] for row in rows if row.get("train/loss")]
    return found[0], found[-1]


def main():
    """Train without and with interruptions, and compare."""
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "trl_sft_output").resolve()
    whole, interrupted = output / "whole", output / "interrupted"
    if output.exists():
        sys.exit(f"{output} exists; pass another folder.")
    whole.mkdir(parents=True)
    interrupted.mkdir()
    start(whole).wait()
    for after, by in ((SAVED_EVERY, signal.SIGTERM), (2 * SAVED_EVERY, signal.SIGKILL)):
        status = stop(start(interrupted), interrupted, after, by)
        newest = max(interrupted.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
        print(f"{by.name} after step {after}: exit status {status}, newest {newest.name}")
    start(interrupted).wait()
    print("losses in Lightning's CSV files: {} to {}".format(*losses(whole)))
    first, second = ((folder / "model.safetensors").read_bytes() for folder in (whole, interrupted))
    print(f"the weights are equal: {first == second}")


if __name__ == "__main__":
    train(sys.argv[2]) if sys.argv[1:2] == ["--train"] else main()
