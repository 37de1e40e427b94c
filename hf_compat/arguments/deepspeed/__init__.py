"""The config in ``TrainingArguments.deepspeed``, read without torch and without DeepSpeed."""
