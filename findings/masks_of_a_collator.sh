#!/usr/bin/env bash
# A masked language model that is resumed in an epoch masks other tokens; with a seed and workers all epochs mask alike.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: the collator draws masks from torch's generator one batch ahead of the step that is saved, so that a run
#            draws others after a resume. With a `seed` it has a generator of its own, which no checkpoint has. Workers
#            make theirs from the seed at the begin of each epoch: the third batch of every epoch has the same places
#            masked.
# Seen:      resumed in the epoch: other weights, with and without `seed`; resumed at its end: the same without. With
#            one worker and `seed=1` the masks of both epochs are equal, without a worker they are not.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
import torch
from tokenizers import Tokenizer, models
from transformers import (BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling, PreTrainedTokenizerFast,
                          Trainer, TrainingArguments, logging)

logging.set_verbosity_error()
words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, **{f"w{number}": number for number in range(3, 64)}}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[UNK]")),
                                    pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]")
config = BertConfig(vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
rows = [{"input_ids": [3 + first + place for place in range(16)]} for first in range(16)]


def collator(seed):
    return DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, seed=seed)


def weights(seed, save_steps, resumed=None):
    torch.manual_seed(0)
    args = TrainingArguments("out", use_cpu=True, report_to="none", max_steps=12, per_device_train_batch_size=2,
                             learning_rate=1e-2, save_steps=save_steps, disable_tqdm=True)
    trainer = Trainer(BertForMaskedLM(config), args, train_dataset=rows, data_collator=collator(seed))
    trainer.train(resume_from_checkpoint=resumed)
    return torch.cat([parameter.flatten() for parameter in trainer.model.parameters()])


same = {}
for save_steps, place in ((6, "in the epoch"), (8, "at its end")):
    for seed in (None, 1):
        unbroken = weights(seed, save_steps)
        resumed = weights(seed, save_steps, f"out/checkpoint-{save_steps}")
        same[place, seed] = torch.equal(unbroken, resumed)
        print(f"seed={seed}, resumed {place}: the weights of the unbroken run: {same[place, seed]}")
assert [key for key, equal in same.items() if equal] == [("at its end", None)]


def repeats(workers):
    texts = [{"input_ids": list(range(3, 19))}] * 4
    loader = torch.utils.data.DataLoader(texts, batch_size=2, collate_fn=collator(1), num_workers=workers)
    first, second = ([batch["labels"].tolist() for batch in loader] for _ in range(2))
    return first == second


print("both epochs have the same masks, by the number of workers:", {workers: repeats(workers) for workers in (0, 1)})
assert (repeats(0), repeats(1)) == (False, True)
PYTHON
