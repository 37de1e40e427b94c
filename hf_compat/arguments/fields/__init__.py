"""The fields of ``TrainingArguments``: their types and defaults, and what becomes of each."""
