#!/usr/bin/env bash
# What a tokenizer was last called with is in the file that is saved.
#
# Versions:  transformers 5.24.0, tokenizers 0.23.3, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `truncation`, `max_length` and `padding` of a call are settings of the tokenizer behind it until the next call,
#            and `save_pretrained` writes them into `tokenizer.json`, as a Trainer does with each checkpoint. transformers
#            sets them anew at each call; whatever else reads the file cuts and pads as that one call did.
# Seen:      after a call with a length of 3 five words are three tokens in the tokenizers library, and one word is three.
#            In transformers they are five and one.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 tokenizers==0.23.3 numpy==2.4.6
run <<'PYTHON'
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

tokens = Tokenizer(models.WordLevel({"[PAD]": 0, **{f"w{i}": i for i in range(1, 8)}}, unk_token="[PAD]"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="[PAD]")
texts = {"five words": "w1 w2 w3 w4 w5", "one word": "w1"}


def lengths():
    tokenizer.save_pretrained("saved")
    read = Tokenizer.from_file("saved/tokenizer.json")
    return {name: len(read.encode(text).ids) for name, text in texts.items()}


before = lengths()
tokenizer(texts["five words"], truncation=True, padding="max_length", max_length=3)
after = lengths()
again = PreTrainedTokenizerFast.from_pretrained("saved")
in_transformers = {name: len(again(text)["input_ids"]) for name, text in texts.items()}
print("tokens by the tokenizers library: saved before the call", before, "and after it", after)
print("by transformers, after it:", in_transformers)
assert before == in_transformers == {"five words": 5, "one word": 1}
assert after == {"five words": 3, "one word": 3}
PYTHON
