"""The model card: the model, its training and its results, as a README for its folder."""

from hf_compat.model_card.summary import TrainingSummary

__all__ = ["TrainingSummary"]
