#!/usr/bin/env bash
# With activation checkpointing a BatchNorm counts each batch twice, and a model is evaluated with other averages.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: `gradient_checkpointing=True` computes a layer again in the backward pass. A BatchNorm in it, such as in
#            the layers of a Conformer, moves its averages then, too: its momentum is nearly doubled. The weights are
#            the same, the evaluation is not.
# Seen:      after three steps: three batches without, six with checkpointing, another running mean, the same
#            weights, and another loss of the evaluation.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
import torch
from transformers import Trainer, TrainingArguments, Wav2Vec2ConformerConfig, Wav2Vec2ConformerForCTC, logging

logging.set_verbosity_error()
without = dict.fromkeys(["hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "layerdrop",
                         "mask_time_prob", "final_dropout"], 0.0)
config = Wav2Vec2ConformerConfig(
    vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(16, 16),
    conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, feat_extract_norm="layer",
    num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, conv_depthwise_kernel_size=3, apply_spec_augment=False,
    ctc_loss_reduction="mean", **without)
generator = torch.Generator().manual_seed(0)
rows = [{"input_values": torch.randn(400, generator=generator).tolist(), "labels": [1, 2, 3]} for _ in range(8)]


def trained(checkpointing):
    torch.manual_seed(0)
    model = Wav2Vec2ConformerForCTC(config)
    args = TrainingArguments("out", use_cpu=True, report_to="none", max_steps=3, per_device_train_batch_size=2,
                             learning_rate=1e-3, save_strategy="no", disable_tqdm=True,
                             gradient_checkpointing=checkpointing)
    trainer = Trainer(model, args, train_dataset=rows)
    trainer.train()
    norm = model.wav2vec2_conformer.encoder.layers[0].conv_module.batch_norm
    loss = trainer.evaluate(rows)["eval_loss"]
    print(f"gradient_checkpointing={checkpointing}: {norm.num_batches_tracked} batches, running mean "
          f"{norm.running_mean[:3].tolist()}, evaluation loss {loss}")
    return norm, loss, list(model.parameters())


plain, twice = trained(False), trained(True)
assert (plain[0].num_batches_tracked, twice[0].num_batches_tracked) == (3, 6)
assert all(torch.equal(one, other) for one, other in zip(plain[2], twice[2], strict=True))
assert plain[1] != twice[1] and not torch.equal(plain[0].running_mean, twice[0].running_mean)
PYTHON
