"""Scripts for transformers' Trainer, one a family of tasks: `task_families.py OUTPUT TASK [--resume] [--gpu]`."""

import argparse
import json
import os
import time

import numpy as np
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertForTokenClassification,
    CLIPConfig,
    CLIPModel,
    DataCollatorForLanguageModeling,
    DataCollatorForPermutationLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    DistilBertConfig,
    DistilBertForQuestionAnswering,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    Wav2Vec2ForSequenceClassification,
    XLNetConfig,
    XLNetLMHeadModel,
    YolosConfig,
    YolosForObjectDetection,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import EvalPrediction, PredictionOutput, speed_metrics

WORDS = 40
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
VIT = ViTConfig(image_size=16, patch_size=4, num_labels=3, encoder_stride=4, **SMALL)
WAVES = Wav2Vec2Config(
    vocab_size=12, conv_dim=(8, 8), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2,
    num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=8, mask_time_length=2,
    feat_proj_dropout=0.1, **SMALL,
)  # fmt: skip


def bert(**more) -> BertConfig:
    return BertConfig(vocab_size=WORDS, max_position_embeddings=32, **SMALL, **more)


def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask", "bos", "eos")}
    words = [*special.values(), *(f"w{number}" for number in range(WORDS - len(special)))]
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def sentences(number: int, seed: int, *, even: bool = False) -> list[list[int]]:
    drawn = np.random.default_rng(seed)
    return [drawn.integers(7, WORDS, 8 if even else drawn.integers(4, 10)).tolist() for _ in range(number)]


def images(number: int, seed: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(number, 3, 16, 16)).astype("float32"))


def sounds(number: int, seed: int) -> list[np.ndarray]:
    drawn = np.random.default_rng(seed)
    return [drawn.normal(size=drawn.integers(300, 420)).astype("float32") for _ in range(number)]


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    guessed = np.argmax(prediction.predictions, axis=-1)
    counts = prediction.label_ids != -100
    return {"accuracy": float((guessed == prediction.label_ids)[counts].mean())}


def text_classification(number, seed):
    rows = [{"input_ids": row, "labels": sum(row) % 2} for row in sentences(number, seed)]
    return {
        "model": BertForSequenceClassification(bert()),
        "data_collator": DataCollatorWithPadding(tokenizer()),
        "compute_metrics": accuracy,
    }, rows


def regression(number, seed):
    rows = [{"input_ids": row, "labels": sum(row) / 100} for row in sentences(number, seed)]

    def errors(prediction: EvalPrediction) -> dict[str, float]:
        return {"mse": float(((np.squeeze(prediction.predictions) - prediction.label_ids) ** 2).mean())}

    model = BertForSequenceClassification(bert(num_labels=1))
    return {"model": model, "data_collator": DataCollatorWithPadding(tokenizer()), "compute_metrics": errors}, rows


def token_classification(number, seed):
    rows = [{"input_ids": row, "labels": [-100, *(word % 2 for word in row[1:])]} for row in sentences(number, seed)]
    collator = DataCollatorForTokenClassification(tokenizer())
    return {"model": BertForTokenClassification(bert()), "data_collator": collator, "compute_metrics": accuracy}, rows


class QuestionAnsweringTrainer(Trainer):
    def __init__(self, *args, post_process_function=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.post_process_function = post_process_function

    def raw_predictions(self, dataloader, prefix):
        compute_metrics, self.compute_metrics = self.compute_metrics, None
        start = time.time()
        try:
            output = self.evaluation_loop(dataloader, description="Evaluation", metric_key_prefix=prefix)
        finally:
            self.compute_metrics = compute_metrics
        output.metrics.update(speed_metrics(prefix, start, num_samples=output.num_samples))
        return output

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        output = self.raw_predictions(self.get_eval_dataloader(dataset), metric_key_prefix)
        metrics = self.compute_metrics(self.post_process_function(dataset, output.predictions))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()} | output.metrics
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(self, predict_dataset, ignore_keys=None, metric_key_prefix="test"):
        output = self.raw_predictions(self.get_test_dataloader(predict_dataset), metric_key_prefix)
        spans = self.post_process_function(predict_dataset, output.predictions)
        return PredictionOutput(predictions=spans.predictions, label_ids=spans.label_ids, metrics=output.metrics)


def question_answering(number, seed):
    rows = [
        {"input_ids": row, "start_positions": row[0] % 4, "end_positions": row[1] % 4 + 4}
        for row in sentences(number, seed, even=True)
    ]

    def spans(dataset, predictions) -> EvalPrediction:
        found = np.stack([part.argmax(-1) for part in predictions], axis=-1)
        return EvalPrediction(found, np.array([[row["start_positions"], row["end_positions"]] for row in dataset]))

    def matches(prediction: EvalPrediction) -> dict[str, float]:
        return {"exact_match": float((prediction.predictions == prediction.label_ids).all(-1).mean())}

    config = DistilBertConfig(
        vocab_size=WORDS, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=32
    )
    return {
        "model": DistilBertForQuestionAnswering(config), "data_collator": default_data_collator,
        "compute_metrics": matches, "post_process_function": spans, "class": QuestionAnsweringTrainer,
    }, rows  # fmt: skip


def multiple_choice(number, seed):
    drawn = sentences(number * 3, seed, even=True)
    rows = [{"input_ids": drawn[index::number], "labels": sum(drawn[index]) % 3} for index in range(number)]
    return {
        "model": BertForMultipleChoice(bert()),
        "data_collator": default_data_collator,
        "compute_metrics": accuracy,
    }, rows


def masked_language_model(number, seed):
    rows = [{"input_ids": row} for row in sentences(number, seed)]
    collator = DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.3)
    return {"model": BertForMaskedLM(bert()), "data_collator": collator, "compute_metrics": accuracy}, rows


def causal_language_model(number, seed):
    rows = [{"input_ids": row, "labels": row} for row in sentences(number, seed, even=True)]
    config = GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=5, eos_token_id=6
    )

    def shifted(prediction: EvalPrediction) -> dict[str, float]:
        return {"accuracy": float((prediction.predictions[:, :-1] == prediction.label_ids[:, 1:]).mean())}

    return {
        "model": GPT2LMHeadModel(config), "data_collator": default_data_collator, "compute_metrics": shifted,
        "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(dim=-1),
    }, rows  # fmt: skip


def permutation_language_model(number, seed):
    rows = [{"input_ids": row} for row in sentences(number, seed, even=True)]
    model = XLNetLMHeadModel(XLNetConfig(vocab_size=WORDS, d_model=16, n_layer=2, n_head=2, d_inner=32))
    return {"model": model, "data_collator": DataCollatorForPermutationLanguageModeling(tokenizer())}, rows


def generated_length(prediction: EvalPrediction) -> dict[str, float]:
    guessed = np.where(prediction.predictions != -100, prediction.predictions, 0)
    return {"gen_len": float(np.count_nonzero(guessed, axis=-1).mean()), "sum": float(guessed.sum())}


def summarization(number, seed):
    rows = [{"input_ids": row, "labels": row[::2]} for row in sentences(number, seed)]
    config = T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    collator = DataCollatorForSeq2Seq(tokenizer(), model=model)
    return {"model": model, "data_collator": collator, "compute_metrics": generated_length, "beams": 2}, rows


def translation(number, seed):
    rows = [{"input_ids": row, "labels": row[::-1]} for row in sentences(number, seed)]
    config = BartConfig(
        vocab_size=WORDS, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32, pad_token_id=0,
        bos_token_id=5, eos_token_id=6, decoder_start_token_id=6, forced_eos_token_id=6,
    )  # fmt: skip
    model = BartForConditionalGeneration(config)
    collator = DataCollatorForSeq2Seq(tokenizer(), model=model)
    return {
        "model": model, "data_collator": collator, "compute_metrics": generated_length, "beams": 3,
        "label_smoothing_factor": 0.1,
    }, rows  # fmt: skip


def image_classification(number, seed):
    rows = [{"pixel_values": image, "labels": index % 3} for index, image in enumerate(images(number, seed))]
    return {
        "model": ViTForImageClassification(VIT),
        "data_collator": default_data_collator,
        "compute_metrics": accuracy,
    }, rows


def masked_image_model(number, seed):
    drawn = np.random.default_rng(seed)
    rows = [{"pixel_values": image, "mask": drawn.random(16) < 0.5} for image in images(number, seed)]

    def collate(examples):
        pixels = torch.stack([torch.tensor(example["pixel_values"]) for example in examples])
        return {"pixel_values": pixels, "bool_masked_pos": torch.tensor(np.array([one["mask"] for one in examples]))}

    return {"model": ViTForMaskedImageModeling(VIT), "data_collator": collate}, rows


def segmentation(number, seed):
    drawn = np.random.default_rng(seed)
    rows = [{"pixel_values": image, "labels": drawn.integers(0, 3, (16, 16))} for image in images(number, seed)]
    config = SegformerConfig(
        num_labels=3, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3],
        strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
    )  # fmt: skip

    @torch.no_grad()
    def by_pixel(prediction: EvalPrediction) -> dict[str, float]:
        size = prediction.label_ids.shape[-2:]
        logits = torch.nn.functional.interpolate(torch.from_numpy(prediction.predictions), size=size, mode="bilinear")
        return {"pixel_accuracy": float((logits.argmax(dim=1).numpy() == prediction.label_ids).mean())}

    model = SegformerForSemanticSegmentation(config)
    return {"model": model, "data_collator": default_data_collator, "compute_metrics": by_pixel}, rows


def detection(number, seed):
    drawn = np.random.default_rng(seed)
    rows = []
    for image in images(number, seed):
        boxes = drawn.random((drawn.integers(1, 4), 4)).astype("float32") * 0.4 + 0.3
        rows.append(
            {"pixel_values": image, "labels": {"boxes": boxes, "class_labels": drawn.integers(0, 3, len(boxes))}}
        )

    def collate(examples):
        pixels = torch.stack([torch.tensor(example["pixel_values"]) for example in examples])
        labels = [{name: torch.tensor(value) for name, value in one["labels"].items()} for one in examples]
        return {"pixel_values": pixels, "labels": labels}

    def boxes_found(prediction: EvalPrediction) -> dict[str, float]:
        boxes = [batch[2] for batch in prediction.predictions]
        targets = [target for batch in prediction.label_ids for target in batch]
        return {
            "mean_box": float(np.concatenate(boxes).mean()),
            "targets": float(sum(len(one["boxes"]) for one in targets)),
        }

    config = YolosConfig(image_size=[16, 16], patch_size=4, num_detection_tokens=5, num_labels=3, **SMALL)
    return {
        "model": YolosForObjectDetection(config), "data_collator": collate, "compute_metrics": boxes_found,
        "eval_do_concat_batches": False,
    }, rows  # fmt: skip


def padded_sounds(examples):
    longest = max(len(example["input_values"]) for example in examples)
    values = [np.pad(example["input_values"], (0, longest - len(example["input_values"]))) for example in examples]
    mask = [[1] * len(one["input_values"]) + [0] * (longest - len(one["input_values"])) for one in examples]
    return {"input_values": torch.tensor(np.array(values)), "attention_mask": torch.tensor(mask)}


def audio_classification(number, seed):
    rows = [{"input_values": sound, "labels": index % 2} for index, sound in enumerate(sounds(number, seed))]

    def collate(examples):
        return padded_sounds(examples) | {"labels": torch.tensor([example["labels"] for example in examples])}

    model = Wav2Vec2ForSequenceClassification(WAVES)
    model.freeze_feature_encoder()
    return {"model": model, "data_collator": collate, "compute_metrics": accuracy}, rows


def speech_recognition(number, seed):
    drawn = np.random.default_rng(seed)
    rows = [
        {"input_values": one, "labels": drawn.integers(1, 12, drawn.integers(2, 5))} for one in sounds(number, seed)
    ]

    def collate(examples):
        longest = max(len(example["labels"]) for example in examples)
        labels = [np.pad(one["labels"], (0, longest - len(one["labels"])), constant_values=-100) for one in examples]
        return padded_sounds(examples) | {"labels": torch.tensor(np.array(labels))}

    def emitted(prediction: EvalPrediction) -> dict[str, float]:
        guessed = prediction.predictions.argmax(axis=-1)
        return {"emitted": float((guessed > 0).sum()), "targets": float((prediction.label_ids != -100).sum())}

    return {"model": Wav2Vec2ForCTC(WAVES), "data_collator": collate, "compute_metrics": emitted}, rows


def contrastive_image_text(number, seed):
    texts = sentences(number, seed, even=True)
    rows = [{"pixel_values": image, "input_ids": text} for image, text in zip(images(number, seed), texts, strict=True)]

    def collate(examples):
        pixels = torch.stack([torch.tensor(example["pixel_values"]) for example in examples])
        words = torch.tensor([example["input_ids"] for example in examples])
        return {
            "pixel_values": pixels,
            "input_ids": words,
            "attention_mask": torch.ones_like(words),
            "return_loss": True,
        }

    config = CLIPConfig(
        text_config={
            "vocab_size": WORDS,
            "max_position_embeddings": 16,
            "projection_dim": 8,
            "eos_token_id": 6,
            **SMALL,
        },
        vision_config={"image_size": 16, "patch_size": 4, "projection_dim": 8, **SMALL},
        projection_dim=8,
    )
    return {"model": CLIPModel(config), "data_collator": collate}, rows


TASKS = {
    made.__name__: made
    for made in (
        text_classification, regression, token_classification, question_answering, multiple_choice,
        masked_language_model, causal_language_model, permutation_language_model, summarization, translation,
        image_classification, masked_image_model, segmentation, detection, audio_classification, speech_recognition,
        contrastive_image_text,
    )
}  # fmt: skip


def run(task: str, folder: str, resume: bool, gpu: bool) -> None:
    set_seed(11)
    made, train = TASKS[task](12, 0)
    _, held_out = TASKS[task](5, 1)
    beams = made.pop("beams", None)
    own = {name: made.pop(name) for name in ("label_smoothing_factor", "eval_do_concat_batches") if name in made}
    kind = made.pop("class", Trainer if beams is None else Seq2SeqTrainer)
    args = (TrainingArguments if beams is None else Seq2SeqTrainingArguments)(
        output_dir=folder,
        max_steps=6,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2 if task in ("token_classification", "causal_language_model") else 1,
        learning_rate=5e-3,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        remove_unused_columns=False,
        use_cpu=not gpu,
        bf16=gpu,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **own,
        **({} if beams is None else {"predict_with_generate": True, "generation_num_beams": beams}),
    )
    trainer = kind(args=args, train_dataset=train, eval_dataset=held_out, **made)
    trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-3") if resume else None)
    trainer.save_model()
    trainer.save_state()
    predicted = trainer.predict(held_out)
    with open(os.path.join(folder, "predictions.json"), "w") as file:
        json.dump(repr(predicted.predictions), file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("tasks", nargs="+", choices=sorted(TASKS))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--gpu", action="store_true", help="train on a GPU, in bfloat16")
    options = parser.parse_args()
    for name in options.tasks:
        run(name, os.path.join(options.output, name), options.resume, options.gpu)
