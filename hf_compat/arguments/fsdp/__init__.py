"""The settings in ``TrainingArguments.fsdp`` and ``fsdp_config``, read without torch."""
