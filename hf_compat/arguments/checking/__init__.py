"""Resolving and checking the values of ``TrainingArguments``; all problems come in one error."""
