"""Runs of sentence-transformers, and of what builds on it: SetFit and PyLate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.ecosystem.pieces import (
    ARGUMENTS,
    DEVICE,
    EVALUATED,
    encoder,
    library_run,
    masked_words,
    one_score,
    output,
    sentence,
    texts,
)


def sentence_transformer(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(encoder(folder), device=DEVICE)  # of its tokens' mean


@library_run
def sentences_with_an_evaluator(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.losses import CosineSimilarityLoss

    model = sentence_transformer(folder)
    rows = texts(12, "sentence1", "sentence2", score=lambda number: (number % 4) / 4)
    judged = EmbeddingSimilarityEvaluator(*(rows[name] for name in ("sentence1", "sentence2", "score")))
    args = SentenceTransformerTrainingArguments(output(folder), **EVALUATED)
    return SentenceTransformerTrainer(model, args, rows, loss=CosineSimilarityLoss(model), evaluator=judged)


@library_run
def sentences_without_duplicates(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.training_args import BatchSamplers

    model = sentence_transformer(folder)
    rows = texts(12, "positive", anchor=lambda number: sentence(number % 5, 4)).select_columns(["anchor", "positive"])
    given = {**ARGUMENTS, "batch_sampler": BatchSamplers.NO_DUPLICATES, "eval_strategy": "epoch", "max_steps": -1}
    args = SentenceTransformerTrainingArguments(output(folder), num_train_epochs=2, **given)
    return SentenceTransformerTrainer(model, args, rows, rows.select(range(4)), MultipleNegativesRankingLoss(model))


@library_run
def sentences_by_label(folder: Path) -> Any:
    """Several evaluators, one after the other, choose the best checkpoint."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.evaluation import (
        BinaryClassificationEvaluator,
        InformationRetrievalEvaluator,
        SequentialEvaluator,
        TripletEvaluator,
    )
    from sentence_transformers.losses import BatchAllTripletLoss
    from sentence_transformers.training_args import BatchSamplers

    model = sentence_transformer(folder)
    rows = texts(24, "text", label=lambda number: number % 3)
    judged = texts(6, "one", "two", "three")
    questions, answers = (dict(zip(judged["one"], judged[name], strict=True)) for name in ("one", "two"))
    documents = {f"d{at}": text for at, text in enumerate(answers.values())}
    evaluators = [
        TripletEvaluator(*(judged[name] for name in ("one", "two", "three"))),
        BinaryClassificationEvaluator(judged["one"], judged["two"], [0, 1] * 3),
        InformationRetrievalEvaluator(
            {f"q{at}": text for at, text in enumerate(questions)},
            documents,
            {f"q{at}": {f"d{at}"} for at in range(len(questions))},
        ),
    ]
    given = {**EVALUATED, "per_device_train_batch_size": 4, "batch_sampler": BatchSamplers.GROUP_BY_LABEL}
    given |= {"load_best_model_at_end": True, "metric_for_best_model": "sequential_score"}
    args = SentenceTransformerTrainingArguments(output(folder), **given)
    loss = BatchAllTripletLoss(model)
    return SentenceTransformerTrainer(model, args, rows, loss=loss, evaluator=SequentialEvaluator(evaluators))


@library_run
def sentences_of_two_data_sets(folder: Path) -> Any:
    """Each data set has a loss of its own; their batches take turns, and hashes find the duplicates."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import CosineSimilarityLoss, MatryoshkaLoss, MultipleNegativesRankingLoss
    from sentence_transformers.training_args import BatchSamplers, MultiDatasetBatchSamplers

    model = sentence_transformer(folder)
    scored = texts(10, "sentence1", "sentence2", score=lambda number: (number % 4) / 4)
    pairs = texts(14, "anchor", "positive")
    losses = {
        "scored": CosineSimilarityLoss(model),
        "pairs": MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [16, 8]),
    }
    given = {**EVALUATED, "multi_dataset_batch_sampler": MultiDatasetBatchSamplers.ROUND_ROBIN, "prompts": "w1 w2 "}
    given |= {"batch_sampler": BatchSamplers.NO_DUPLICATES, "learning_rate_mapping": {"embeddings": 1e-3}}
    args = SentenceTransformerTrainingArguments(output(folder), **given)
    others = {"scored": scored.select(range(3)), "pairs": pairs.select(range(3))}
    return SentenceTransformerTrainer(model, args, {"scored": scored, "pairs": pairs}, others, losses)


@library_run
def cross_encoder(folder: Path) -> Any:
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    model = CrossEncoder(one_score(folder), max_length=32, device=DEVICE)
    rows = texts(12, "query", "answer", label=lambda number: float(number % 2))
    ranked = [
        {"query": sentence(at, 4), "positive": [sentence(at + 1, 4)], "negative": [sentence(at + 2, 3)]}
        for at in range(4)
    ]
    # By default True, with which torch's DDP refuses this model.
    args = CrossEncoderTrainingArguments(output(folder), **EVALUATED, ddp_find_unused_parameters=False)
    loss = BinaryCrossEntropyLoss(model)
    evaluator = CrossEncoderRerankingEvaluator(ranked)
    return CrossEncoderTrainer(model, args, rows, rows.select(range(3)), loss, evaluator=evaluator)


@library_run
def sparse_encoder(folder: Path) -> Any:
    """The weight of its regularizer grows with the update steps, by a callback of the loss's."""
    from sentence_transformers import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
    from sentence_transformers.sparse_encoder.evaluation import SparseTripletEvaluator
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
    from sentence_transformers.training_args import BatchSamplers

    model = SparseEncoder(masked_words(folder), device=DEVICE)
    rows = texts(12, "query", "document")
    judged = texts(4, "one", "two", "three")
    evaluator = SparseTripletEvaluator(*(judged[name] for name in ("one", "two", "three")))
    loss = SpladeLoss(model, SparseMultipleNegativesRankingLoss(model), 3e-2, query_regularizer_weight=5e-2)
    # What BERT computes of a whole text, this model does not use, and torch's DDP asks whether that is meant.
    given = {**EVALUATED, "batch_sampler": BatchSamplers.NO_DUPLICATES, "ddp_find_unused_parameters": True}
    args = SparseEncoderTrainingArguments(output(folder), **given)
    return SparseEncoderTrainer(model, args, rows, rows.select(range(3)), loss, evaluator=evaluator)


@library_run
def multi_vector_encoder(folder: Path) -> Any:
    from sentence_transformers import (
        MultiVectorEncoder,
        MultiVectorEncoderTrainer,
        MultiVectorEncoderTrainingArguments,
    )
    from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss

    model = MultiVectorEncoder(encoder(folder), device=DEVICE)
    rows = texts(12, "query", "document")
    args = MultiVectorEncoderTrainingArguments(output(folder), **EVALUATED)
    loss = MultiVectorMultipleNegativesRankingLoss(model)
    return MultiVectorEncoderTrainer(model, args, rows, rows.select(range(3)), loss)


@library_run
def setfit(folder: Path) -> Any:
    """Its Trainer drives that of sentence-transformers, and then fits the head of scikit-learn's."""
    from setfit import SetFitModel, Trainer, TrainingArguments
    from sklearn.linear_model import LogisticRegression

    class Evaluated(Trainer):
        def train(self, resume_from_checkpoint: None) -> None:
            super().train()
            self.st_trainer.state.log_history.append(self.evaluate())

    model = SetFitModel(sentence_transformer(folder), LogisticRegression())
    rows = texts(8, "text", label=lambda number: number % 2)
    given = {"report_to": "none", "logging_steps": 1, "save_strategy": "steps", "save_steps": 2, "seed": 3}
    args = TrainingArguments(output(folder), batch_size=2, max_steps=4, use_amp=False, **given)
    return Evaluated(model, args, rows, rows.select(range(4)), metric=_right)


def _right(guesses: Any, labels: list[int]) -> dict[str, int]:
    return {"right": sum(int(guess) == label for guess, label in zip(guesses, labels, strict=True))}


@library_run
def pylate(folder: Path) -> Any:
    from pylate import evaluation, losses, models, utils
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    model = models.ColBERT(encoder(folder), embedding_size=8, device=DEVICE, query_length=8, document_length=16)
    rows = texts(12, "query", "positive", "negative")
    judged = texts(4, "one", "two", "three")
    return SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(output(folder), **EVALUATED),
        rows,
        rows.select(range(3)),
        losses.Contrastive(model),
        evaluator=evaluation.ColBERTTripletEvaluator(*(judged[name] for name in ("one", "two", "three"))),
        data_collator=utils.ColBERTCollator(model.tokenize),
    )
