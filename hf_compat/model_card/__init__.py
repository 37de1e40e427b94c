"""A model card: what a model is, how it was trained and what it reached, as a README for its folder."""

from hf_compat.model_card.summary import TrainingSummary

__all__ = ["TrainingSummary"]
