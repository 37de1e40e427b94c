#!/usr/bin/env bash
# A pad token that the vocabulary does not have, such as `tokenizer.pad_token = "<pad>"`, is the unknown token.
#
# Versions:  transformers 5.24.0, tokenizers 0.23.3, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: the attribute takes any text. Its id is looked up, and is that of the unknown token, so that the padding is,
#            too; a collator for language models leaves all unknown words out of the loss, as if they were padding. An
#            `eos_token` that is set so ends a text at each unknown word. No message says so. Given to the constructor or to
#            `add_special_tokens` the token is added.
# Seen:      `pad_token_id` is 0, as `unk_token_id`, and the labels of an unknown word in the middle of a text are -100; with
#            `add_special_tokens` it is a new id, and the word has its label.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 tokenizers==0.23.3 torch==2.13.0
run <<'PYTHON'
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast


def new():
    words = Tokenizer(WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


def labels(tokenizer):
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    return collator([tokenizer("a other b a"), tokenizer("a b")])["labels"].tolist()


given, added = new(), new()
given.pad_token = "<pad>"
added.add_special_tokens({"pad_token": "<pad>"})
for name, tokenizer in (("set", given), ("added", added)):
    print(name, tokenizer.pad_token, tokenizer.pad_token_id, "labels:", labels(tokenizer))
assert given.pad_token == added.pad_token == "<pad>"
assert given.pad_token_id == given.unk_token_id == 0 and added.pad_token_id == 3
assert labels(given) == [[1, -100, 2, 1], [1, 2, -100, -100]]
assert labels(added) == [[1, 0, 2, 1], [1, 2, -100, -100]]
PYTHON
