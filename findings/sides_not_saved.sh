#!/usr/bin/env bash
# A tokenizer that was set to pad on the left pads on the right once it is saved and loaded.
#
# Versions:  transformers 5.24.0, tokenizers 0.23.3; Python 3.11 on a CPU
# Behaviour: `save_pretrained` writes what the tokenizer was made with. `tokenizer.padding_side = "left"` and `truncation_side`
#            that are set later are not written, unless the file that it was loaded from has them, while `model_max_length`
#            and `chat_template` are. A model that generates in batches then continues padding, without a message.
# Seen:      of four attributes that were set after loading, the length and the template are there after a save and a load,
#            the sides are "right"; passed to `from_pretrained`, they are kept.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 tokenizers==0.23.3
run <<'PYTHON'
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "word": 2}, unk_token="[UNK]"))
PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained("made")
SETTINGS = {"padding_side": "left", "truncation_side": "left", "model_max_length": 7, "chat_template": "text"}


def after_a_save(tokenizer):
    tokenizer.save_pretrained("saved")
    loaded = AutoTokenizer.from_pretrained("saved")
    return {name: getattr(loaded, name) for name in SETTINGS}


tokenizer = AutoTokenizer.from_pretrained("made")
for name, value in SETTINGS.items():
    setattr(tokenizer, name, value)
assigned = after_a_save(tokenizer)
passed = after_a_save(AutoTokenizer.from_pretrained("made", **SETTINGS))
print("set after loading:", assigned, "passed:", passed)
assert assigned == SETTINGS | {"padding_side": "right", "truncation_side": "right"}
assert passed == SETTINGS
PYTHON
