#!/usr/bin/env bash
# What a loss has learned is not in the checkpoint, and a resumed run begins it anew.
#
# Versions:  sentence-transformers 6.2.0, transformers 5.24.0, accelerate 1.15.0, datasets 5.2.0,
#            torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: Losses such as `SoftmaxLoss` have parameters of their own, which the Trainer gives to the optimizer.
#            Checkpoints hold the model's weights, and the optimizer's state with that of the loss; its parameters are
#            in neither. A resumed run goes on with a new classifier, without a message. They are not clipped by
#            `max_grad_norm` either.
# Seen:      resumed after 2 of 4 steps, the classifier was another than that of the unbroken run.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install sentence-transformers==6.2.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import SoftmaxLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

words = {word: number for number, word in enumerate(["<pad>", "<unk>", *"abcdefgh"])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>").save_pretrained("bert")
sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=8, **sizes)).save_pretrained("bert")
rows = Dataset.from_dict({"one": list("abcdefgh"), "two": list("bcdefgha"), "label": [0, 1, 2, 0, 1, 2, 0, 1]})


def train(resume):
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[Transformer("bert"), Pooling(8)], device="cpu")
    loss = SoftmaxLoss(model, 8, 3)
    arguments = SentenceTransformerTrainingArguments("run", max_steps=4, save_steps=2, per_device_train_batch_size=2,
                                                     learning_rate=0.1, use_cpu=True, report_to="none")
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss)
    trainer.train(resume_from_checkpoint=resume)
    return loss.classifier.weight.detach(), model[0].state_dict()


unbroken, resumed = train(None)[0], train("run/checkpoint-2")[0]
print("the classifiers of the unbroken and the resumed run differ by up to", (unbroken - resumed).abs().max().item())
assert not torch.allclose(unbroken, resumed, atol=0.01)
PYTHON
