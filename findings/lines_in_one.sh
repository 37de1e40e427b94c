#!/usr/bin/env bash
# A SentencePiece model that is trained by its defaults makes one line of a program, and drops its indentation.
#
# Versions:  sentencepiece 0.2.3; Python 3.11 on a CPU
# Behaviour: line breaks and tabs become spaces, and several spaces one, before a text is split. A language model never sees
#            the lines of code, poems or tables, and cannot write them. `user_defined_symbols=["\n"]` alone keeps the line
#            breaks and not the spaces; both need `normalization_rule_name="identity"` and
#            `remove_extra_whitespaces=False`, too. No message says so.
# Seen:      "def f\n    return x" comes back as "def f return x", with the symbol as "def f\n return x", and with all three as
#            it was.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install sentencepiece==0.2.3
run <<'PYTHON'
import io

import sentencepiece

TEXT = "def f\n    return x"


def back(**settings):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["def f a b c return x y z", "if x return y else z"] * 20),
                                             model_writer=model, vocab_size=60, hard_vocab_limit=False, minloglevel=2,
                                             **settings)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return processor.decode(processor.encode(TEXT))


symbol = {"user_defined_symbols": ["\n"]}
plain, lines = back(), back(**symbol)
kept = back(**symbol, normalization_rule_name="identity", remove_extra_whitespaces=False)
print("by default:", repr(plain), "with the symbol:", repr(lines), "with all three:", repr(kept))
assert plain == "def f return x" and lines == "def f\n return x" and kept == TEXT
PYTHON
