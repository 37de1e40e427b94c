"""Train a small Llama from nothing on the manual that comes with Python (``help("topics")``), in less than a minute.

A script as for transformers: with ``from transformers import`` it gives the same numbers to the last bit. Nothing is
downloaded:

    pip install -e ".[transformers]"
    python examples/language_model.py [output folder]
"""

import math
import sys
from pydoc_data.topics import topics

from tokenizers import ByteLevelBPETokenizer

from hf_compat import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed

VOCABULARY, LENGTH = 512, 128
PROMPT = "The for statement is used to"


def tokenizer_of(text):
    """Return a byte-level tokenizer that is trained on ``text``."""
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator([text], vocab_size=VOCABULARY, special_tokens=["<end>"], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=learned._tokenizer, eos_token="<end>", pad_token="<end>")


def blocks(text, tokenizer):
    """Return the text as samples of ``LENGTH`` tokens."""
    ids = tokenizer(text)["input_ids"]
    pieces = [ids[start : start + LENGTH] for start in range(0, len(ids) - LENGTH, LENGTH)]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def main():
    manual = "\n".join(topics[name] for name in sorted(topics))
    split = len(manual) * 9 // 10
    tokenizer = tokenizer_of(manual[:split])
    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    args = TrainingArguments(
        sys.argv[1] if len(sys.argv) > 1 else "language_model_output",
        max_steps=600,
        per_device_train_batch_size=8,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        weight_decay=0.1,
        logging_steps=100,
        eval_strategy="steps",
        eval_steps=200,
        save_steps=200,
        save_total_limit=2,
        report_to="none",
    )
    trainer = Trainer(
        model,
        args,
        train_dataset=blocks(manual[:split], tokenizer),
        eval_dataset=blocks(manual[split:], tokenizer),
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]

    prompt = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False).to(model.device)
    text = model.generate(**prompt, max_new_tokens=60, do_sample=True, top_k=5)
    print(f"\n{tokenizer.decode(text[0], skip_special_tokens=True)} ...")
    print(f"\nperplexity of held-out text: {math.exp(before):.1f} -> {math.exp(after):.1f}")


if __name__ == "__main__":
    main()
