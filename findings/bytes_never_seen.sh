#!/usr/bin/env bash
# A byte-level tokenizer that was trained on some texts drops the letters that were not in them.
#
# Versions:  tokenizers 0.23.3; Python 3.11 on a CPU
# Behaviour: byte-level BPE is taken to encode whatever text, as it has a token for each of 256 bytes. `BpeTrainer` has tokens
#            for the bytes of its texts alone, unless it is given `initial_alphabet`: those of other bytes are left out in
#            encoding, without a message, and without an unknown token even if the vocabulary has one.
# Seen:      trained on "hello world", "quick hello 42" is decoded as "hello"; the whole of it with
#            `initial_alphabet=ByteLevel.alphabet()`.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install tokenizers==0.23.3
run <<'PYTHON'
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def decoded(alphabet):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(["hello world", "some more words"], trainer)
    return tokenizer.decode(tokenizer.encode("quick hello 42").ids)


without, with_alphabet = decoded([]), decoded(pre_tokenizers.ByteLevel.alphabet())
print(f"without: {without!r}, with the alphabet: {with_alphabet!r}")
assert with_alphabet == "quick hello 42"
assert without.strip() == "hello"
PYTHON
