"""Train a language model that two processes share: each keeps half of the weights, by FSDP or by DeepSpeed's ZeRO-3.

With ``sequences`` they share each sequence too, for sequences that do not fit on one GPU.

A field of the arguments says which, and the rest of the script is that of one process. The model, a small Llama, learns
the bytes of the manual that comes with Python (``help("topics")``):

    pip install -e ".[transformers]"                    # for ZeRO: ".[deepspeed,transformers]"
    torchrun --nproc-per-node 2 examples/two_processes.py fsdp [output folder]
    torchrun --nproc-per-node 2 examples/two_processes.py zero [output folder]
    torchrun --nproc-per-node 2 examples/two_processes.py sequences [output folder]
"""

import math
import sys
from pydoc_data.topics import topics

import torch

from hf_compat import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

LENGTH, STEPS = 128, 150
FSDP = {
    "fsdp": "full_shard",
    "fsdp_config": {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "state_dict_type": "FULL_STATE_DICT"},
}
ZERO = {
    "deepspeed": {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,  # share the small weights too
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }
}

SEQUENCES = {**ZERO, "parallelism_config": {"sp_size": 2}}


def samples():
    """Return the manual in pieces of ``LENGTH`` bytes; processes that share them need the positions."""
    manual = "".join(topics[name] for name in sorted(topics)).encode()
    text = torch.frombuffer(bytearray(manual), dtype=torch.uint8).long()
    pieces = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
    positions = torch.arange(LENGTH)
    return [{"input_ids": piece, "labels": piece, "position_ids": positions} for piece in pieces]


def kept(weight):
    """Return how many numbers of a weight this process keeps."""
    if hasattr(weight, "ds_tensor"):  # ZeRO-3
        return weight.ds_tensor.numel()
    return weight.to_local().numel() if hasattr(weight, "to_local") else weight.numel()


def main():
    way, *folder = sys.argv[1:]
    if way != "fsdp" and not torch.cuda.is_available():
        import deepspeed.ops

        # Between CPUs, gloo will do: DeepSpeed would first compile a library of its own for minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    args = TrainingArguments(
        folder[0] if folder else f"two_processes_{way}_output",
        max_steps=STEPS,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=32,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        logging_steps=25,
        save_steps=STEPS,
        report_to="none",
        disable_tqdm=True,
        **{"fsdp": FSDP, "zero": ZERO, "sequences": SEQUENCES}[way],
    )
    set_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=LENGTH, **sizes))
    count = sum(weight.numel() for weight in model.parameters())
    rows = samples()
    trainer = Trainer(model, args, train_dataset=rows[200:], eval_dataset=rows[:200])
    trainer.train()
    bits = trainer.evaluate()["eval_loss"] / math.log(2)
    share = sum(kept(weight) for weight in trainer.model.parameters()) / count
    if trainer.is_world_process_zero():
        print(
            f"bits per byte of held-out text: 8 -> {bits:.2f}; each of {args.world_size} processes keeps {share:.0%} "
            f"of the {count:,} weights"
        )


if __name__ == "__main__":
    main()
