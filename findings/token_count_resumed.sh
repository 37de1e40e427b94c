#!/usr/bin/env bash
# The number of tokens that a fine-tuning has seen begins again at zero when it is resumed.
#
# Versions:  trl 1.16.0, transformers 5.24.0, accelerate 1.15.0, datasets 5.2.0, torch 2.13.0, numpy 2.4.6; Python 3.11
#            on a CPU
# Behaviour: `SFTTrainer` logs `num_tokens`, counted by the Trainer in memory. It is not in the checkpoint: a resumed
#            run counts its own tokens, while the steps go on, and the curve falls at the resume.
# Seen:      40 tokens after 4 steps; resumed at step 2, 20 after the same 4.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install trl==1.16.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefgh"])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
rows = Dataset.from_dict({"text": ["a b c d"] * 8})


def tokens(resume=None):
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), num_key_value_heads=2, max_position_embeddings=32,
                                         pad_token_id=0, bos_token_id=1, eos_token_id=1, **sizes))
    arguments = SFTConfig("run", max_steps=4, save_steps=2, logging_steps=1, per_device_train_batch_size=2, bf16=False,
                          gradient_checkpointing=False, use_cpu=True, report_to="none")
    trainer = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=resume)
    return [row["num_tokens"] for row in trainer.state.log_history if "num_tokens" in row]


unbroken, resumed = tokens(), tokens("run/checkpoint-2")
print("the counts of the unbroken run:", unbroken, "and of the one resumed at step 2:", resumed)
assert unbroken == [10, 20, 30, 40] and resumed == [10, 20, 10, 20]
PYTHON
