"""A script for TRL's trainer of language models, with its own parser."""

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = [f"w{number}" for number in range(24)]


def main(output):
    torch.set_num_threads(1)
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[EOS]", "[UNK]", *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=32, **special)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=32, pad_token_id=0, eos_token_id=1, **sizes)
    texts = [" ".join(WORDS[(start * 7 + step * step) % 24] for step in range(6)) for start in range(12)]
    args = SFTConfig(
        output,
        max_length=16,
        max_steps=6,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=3,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = LlamaForCausalLM(config)
    rows = Dataset.from_dict({"text": texts})
    trainer = SFTTrainer(model, args, train_dataset=rows, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint="--resume" in sys.argv)
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main(sys.argv[1])
