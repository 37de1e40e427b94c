#!/usr/bin/env bash
# A pipeline that is made of a model right after its training predicts with dropout.
#
# Versions:  transformers 5.24.0, accelerate 1.15.0, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: `train` leaves the model in the mode for training, unless an evaluation was the last thing that it did.
#            `pipeline("...", model=trainer.model)` takes the model as it is; only what it loads by name is in the mode for
#            evaluation. Each call gives other scores, which are worse than those of an evaluation. No message says so.
# Seen:      the same text three times has three scores; one after `model.eval()`, and one in a pipeline of the folder that
#            the model was saved to.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 accelerate==1.15.0 torch==2.13.0
run <<'PYTHON'
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "good": 2, "bad": 3}, unk_token="[UNK]"))
words.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(vocab_size=4, hidden_size=16, num_hidden_layers=1,
                                                 num_attention_heads=2, intermediate_size=16))
args = TrainingArguments("output", max_steps=3, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True)
rows = [{**tokenizer("good"), "labels": 1}, {**tokenizer("bad"), "labels": 0}] * 8
Trainer(model, args, train_dataset=rows, processing_class=tokenizer).train()


def scores(classifier):
    return {classifier("good bad good")[0]["score"] for _ in range(3)}


trained = scores(pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu"))
print("scores of one text after training:", sorted(trained), "mode for training:", model.training)
assert model.training and len(trained) == 3
model.save_pretrained("saved")
tokenizer.save_pretrained("saved")
loaded = scores(pipeline("text-classification", model="saved", device="cpu"))
evaluated = scores(pipeline("text-classification", model=model.eval(), tokenizer=tokenizer, device="cpu"))
print("of the saved model:", loaded, "after eval():", evaluated)
assert len(loaded) == len(evaluated) == 1
PYTHON
