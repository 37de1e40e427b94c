#!/usr/bin/env bash
# A WordPiece tokenizer that is trained on the same texts has other tokens and other ids in each process.
#
# Versions:  tokenizers 0.23.3, transformers 5.24.0; Python 3.11 on Linux
# Behaviour: the trainer reads its words in the order of a hash table, which each process draws anew, and numbers the parts of
#            words ("##ing") as they come; nothing seeds it. So does `train_new_from_iterator` of a BERT tokenizer, and
#            `BpeTrainer` with `limit_alphabet`. A script that trains its tokenizer and then resumes a model, or one that trains
#            it on each rank, gives the model ids that mean something else. `BpeTrainer` is the same in each process.
# Seen:      five processes have five vocabularies of WordPiece, and one of BPE.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install tokenizers==0.23.3 transformers==5.24.0
run <<'PYTHON'
import collections
import subprocess
import sys

PROGRAM = """
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertTokenizerFast
import this
texts = "".join(this.d.get(letter, letter) for letter in this.s).splitlines()
for kind, model, trainer in (("WordPiece", models.WordPiece, trainers.WordPieceTrainer), ("BPE", models.BPE, trainers.BpeTrainer)):
    tokenizer = Tokenizer(model())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainer(vocab_size=150, show_progress=False))
    print(kind, tokenizer.encode("Namespaces are one honking great idea").ids)
words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
tokenizer = BertTokenizerFast(vocab=words).train_new_from_iterator(texts, 150)
print("BERT", tokenizer("Namespaces are one honking great idea").input_ids)
"""
found = collections.defaultdict(set)
for _ in range(5):
    lines = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout.splitlines()
    for kind, ids in (line.split(" ", 1) for line in lines if line.startswith(("WordPiece", "BPE", "BERT"))):
        found[kind].add(ids)
print({kind: len(ids) for kind, ids in found.items()}, "different ids of one text in five processes, such as")
print(*sorted(found["WordPiece"])[:2], sep="\n")
assert len(found["WordPiece"]) > 1 and len(found["BERT"]) > 1 and len(found["BPE"]) == 1
PYTHON
