#!/usr/bin/env bash
# A tokenizer from `train_new_from_iterator` has no chat template, and splits the tokens that were added.
#
# Versions:  transformers 5.24.0, tokenizers 0.23.3; Python 3.11 on a CPU
# Behaviour: the method is to give a tokenizer of the same kind for other texts. It keeps side, length and special tokens, but
#            neither `chat_template` nor tokens from `add_tokens`, such as those for tools or fields. A chat is refused
#            later; an added token is letters from then on, without a message.
# Seen:      the new tokenizer has the side and the special tokens, and no template; "<tool>" is three tokens of it and one of
#            the first.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 tokenizers==0.23.3
run <<'PYTHON'
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

merges = Tokenizer(BPE())
merges.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
merges.decoder = decoders.ByteLevel()
trainer = BpeTrainer(special_tokens=["<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
merges.train_from_iterator(["ab ab ab"], trainer)
first = PreTrainedTokenizerFast(tokenizer_object=merges, eos_token="<end>", padding_side="left")
first.add_tokens(["<tool>"])
first.add_special_tokens({"additional_special_tokens": ["<user>"]})
first.chat_template = "{% for message in messages %}<user>{{ message['content'] }}<end>{% endfor %}"
new = first.train_new_from_iterator(["cd cd cd tool"], 400)
for name, tokenizer in (("first", first), ("new", new)):
    print(name, tokenizer.padding_side, tokenizer.all_special_tokens, tokenizer.chat_template, tokenizer("<tool>").tokens())
assert new.padding_side == first.padding_side == "left"
assert new.all_special_tokens == first.all_special_tokens == ["<end>", "<user>"]
assert first.chat_template and new.chat_template is None
assert first("<tool>").tokens() == ["<tool>"] and len(new("<tool>").tokens()) > 1
PYTHON
