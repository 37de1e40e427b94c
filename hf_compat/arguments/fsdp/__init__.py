"""What ``TrainingArguments.fsdp`` and ``fsdp_config`` ask for; read without torch."""
