#!/usr/bin/env bash
# A model that gives all texts the same embedding has a perfect MRR in a `RerankingEvaluator`.
#
# Versions:  sentence-transformers 6.2.0, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: the evaluator puts the positive documents before the negative ones, and sorts by similarity: what is equal stays as
#            it was. So a model that has collapsed, as with too high a learning rate, ranks a positive document first each
#            time. The average precision, which takes equal ones together, shows it. No message says so.
# Seen:      one positive and nine negative documents, all embeddings equal: MRR is 1, and the average precision 0.1.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install sentence-transformers==6.2.0 torch==2.13.0
run <<'PYTHON'
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import RerankingEvaluator


class Collapsed(torch.nn.Module):
    """Gives any text the same embedding."""

    modalities = ["text"]

    def preprocess(self, texts, **kwargs):
        return {"rows": torch.zeros(len(texts), 1)}

    tokenize = preprocess

    def forward(self, features, **kwargs):
        return {**features, "sentence_embedding": torch.ones(len(features["rows"]), 4)}

    def get_embedding_dimension(self):
        return 4

    get_sentence_embedding_dimension = get_embedding_dimension


model = SentenceTransformer(modules=[Collapsed()], device="cpu")
assert (model.encode(["one", "other"]) == 1).all()
samples = [{"query": f"q{i}", "positive": ["p"], "negative": [f"n{j}" for j in range(9)]} for i in range(5)]
seen = RerankingEvaluator(samples, at_k=10, show_progress_bar=False)(model)
print(seen)
assert seen["mrr@10"] == 1 and abs(seen["map"] - 0.1) < 1e-6
PYTHON
