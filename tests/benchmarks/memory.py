"""The most memory that a process takes over what it held before, and what it keeps, side by side with transformers'.

Run one as ``python -m tests.benchmarks.memory evaluate hf_compat``.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["section", "table"]

BOTH = ("hf_compat", "transformers")
ROWS: dict[str, str] = {
    "importing": "import of Trainer and TrainingArguments",
    "steps": "5 steps of a model of 123M parameters",
    "save": "the same with a save",
    "background_save": "the same with a save in the background",
    "resume": "resuming it",
    "best_model": "2 steps with evaluation, save and the best model",
    "evaluate": "evaluate, 76 MB of logits",
    "evaluate_on_two_ranks": "the same with 229 MB of logits on two ranks, rank 0's",
    "predict_ragged": "predict, 4,000 rows of 20 to 96 tags, ragged",
    "generation": "evaluate with generation",
    "streams": "5 steps of a stream with two workers",
}
"""Function of this file to what the table says of it."""


ON_TWO_RANKS = frozenset({"evaluate_on_two_ranks"})


def held(name: str = "VmRSS") -> float:
    """Return ``VmRSS`` or ``VmHWM``, what this process holds and has held at most, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


@contextmanager
def measured() -> Iterator[None]:
    """Tell the most memory over the start in this context, and what is kept after it, in MB; rank 0 alone does."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = held()
    yield
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"most": held("VmHWM") - before, "kept": held() - before}), flush=True)


def importing(package: str) -> None:
    """Import the two names that every script needs."""
    with measured():
        module: Any = importlib.import_module(package)
        _ = module.Trainer, module.TrainingArguments


def _language_model(*, small: bool = False) -> Any:
    import transformers

    sizes: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 2} if small else {"n_embd": 768, "n_layer": 12}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50_000, n_positions=64, **sizes))
    # This imports accelerate, and deepspeed where it is installed, as transformers' Trainer does when it is made, and
    # a first `save_pretrained` elsewhere: neither save is to count them.
    transformers.modeling_utils.unwrap_model(model)
    return model


def _tokens(count: int) -> list[dict[str, Any]]:
    import torch

    rows = torch.randint(0, 50_000, (count, 16), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in rows]


def _trainer(package: str, folder: str, model: Any, **fields: Any) -> Any:
    module: Any = importlib.import_module(package)
    rows = fields.pop("rows", None) or _tokens(16)
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "max_steps": 5, "save_strategy": "no"}
    quiet |= {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
    args = module.TrainingArguments(folder, **{**quiet, **fields})
    return module.Trainer(model, args, train_dataset=rows, eval_dataset=rows if isinstance(rows, list) else None)


def _train(package: str, **fields: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(package, folder, _language_model(), **fields)
        with measured():
            trainer.train()


def steps(package: str) -> None:
    """Train the model of 123M parameters."""
    _train(package)


def save(package: str) -> None:
    """Save it too."""
    _train(package, save_strategy="steps", save_steps=3)


def background_save(package: str) -> None:
    """Save it in the background, where that is possible."""
    own = {"save_async": True} if package == "hf_compat" else {}
    _train(package, save_strategy="steps", save_steps=3, **own)


def resume(package: str) -> None:
    """Resume from its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.benchmarks.memory", "_saved", package, folder]
        subprocess.run(command, check=True, capture_output=True)
        trainer = _trainer(package, folder, _language_model())
        with measured():
            trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-3")


def _saved(package: str, folder: str) -> None:
    _trainer(package, folder, _language_model(), max_steps=3, save_strategy="steps", save_steps=3).train()


def best_model(package: str) -> None:
    """Evaluate and save after each of two steps, and load the best."""
    at = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    _train(package, **at, load_best_model_at_end=True, rows=_tokens(4), prediction_loss_only=True)


def evaluate(package: str, count: int = 20_000) -> None:
    """Evaluate ``count`` rows of 1,000 logits."""
    import torch
    from torch import nn

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 1_000)

        def forward(self, x: Any, labels: Any = None) -> Any:
            logits = self.head(x)
            return {"loss": logits.square().mean(), "logits": logits}

    def rows(count: int) -> Any:
        return [{"x": torch.full((4,), float(index % 7)), "labels": 0} for index in range(count)]

    few, many = rows(500), rows(count)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(package, folder, Wide(), per_device_eval_batch_size=50)
        trainer.compute_metrics = lambda predicted: {"mean": float(predicted.predictions[:10].mean())}
        trainer.evaluate(few)
        with measured():
            trainer.evaluate(many)


def evaluate_on_two_ranks(package: str) -> None:
    """Evaluate three times as many, since what gloo takes does not grow with them."""
    evaluate(package, 60_000)


def predict_ragged(package: str) -> None:
    """Predict rows of 20 to 96 tags of 64 logits, each batch as wide as its widest."""
    import torch
    from torch import nn
    from torch.nn.utils.rnn import pad_sequence

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tags = nn.Embedding(50, 64)

        def forward(self, tokens: Any, labels: Any = None) -> Any:
            logits = self.tags(tokens)
            return {"loss": logits.square().mean(), "logits": logits}

    def collate(rows: Any) -> Any:
        tokens = pad_sequence([row["tokens"] for row in rows], batch_first=True)
        return {"tokens": tokens, "labels": tokens}

    draw = torch.Generator().manual_seed(0)
    widths = torch.randint(20, 97, (4_000,), generator=draw).tolist()
    rows = [{"tokens": torch.randint(0, 50, (width,), generator=draw)} for width in widths]
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(package, folder, Tagger(), per_device_eval_batch_size=20, remove_unused_columns=False)
        trainer.data_collator = collate
        trainer.predict(rows[:200])
        with measured():
            trainer.predict(rows)


def generation(package: str) -> None:
    """Evaluate by generating 32 tokens a row."""
    import transformers

    module: Any = importlib.import_module(package)
    sizes = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 5_000}
    config = transformers.BartConfig(**sizes, encoder_ffn_dim=256, decoder_ffn_dim=256)
    rows = [{"input_ids": row["input_ids"] % 5_000, "labels": row["labels"] % 5_000} for row in _tokens(400)]
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "generation_max_length": 32}
        args = module.Seq2SeqTrainingArguments(folder, predict_with_generate=True, **quiet)
        trainer = module.Seq2SeqTrainer(transformers.BartForConditionalGeneration(config), args)
        with measured():
            trainer.evaluate(rows)


def streams(package: str) -> None:
    """Train on a stream that two workers read."""
    import torch

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(_tokens(400))

    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(package, folder, _language_model(small=True), rows=Stream(), dataloader_num_workers=2)
        with measured():
            trainer.train()


def _in_a_process(name: str, package: str) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if name in ON_TWO_RANKS else []
    command = [sys.executable, "-W", "ignore", *launcher, "-m", "tests.benchmarks.memory", name, package]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def section(rounds: int) -> list[str]:
    """Return the part of the results that is about memory."""
    return [
        "## Memory",
        "",
        "The most memory of a process over what it held before the work, and what it still holds after it; medians",
        f"over {rounds} processes of their own. The ratios do not depend on the machine. A GPT-2 of 123M parameters",
        "has 470 MB of weights, and with gradients and AdamW's states four times as much. transformers has no save in",
        "the background: its figure is that of its save; ours may hold one copy of what it writes (weights and",
        "AdamW's states, 1,411 MB) more than that.",
        "",
        *table(rounds),
    ]


def table(rounds: int) -> list[str]:
    """Return the lines of a Markdown table of medians over ``rounds`` processes each."""
    lines = ["| what | hf_compat, MB | transformers, MB | ratio | kept: hf_compat, MB | transformers, MB |"]
    lines.append(f"|---|{'---|' * 5}")
    for name, what in ROWS.items():
        found = {package: [_in_a_process(name, package) for _ in range(rounds)] for package in BOTH}
        most, kept = (
            {package: statistics.median(one[kind] for one in found[package]) for package in BOTH}
            for kind in ("most", "kept")
        )
        ours, theirs = most.values()
        cells = (
            f"{ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} | {kept['hf_compat']:.0f} | {kept['transformers']:.0f}"
        )
        lines.append(f"| {what} | {cells} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


if __name__ == "__main__":
    functions: dict[str, Callable[..., None]] = {name: globals()[name] for name in (*ROWS, "_saved")}
    functions[sys.argv[1]](*sys.argv[2:])
