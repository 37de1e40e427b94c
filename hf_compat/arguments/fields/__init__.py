"""The fields of ``TrainingArguments``: types, defaults, and the effect of each."""
