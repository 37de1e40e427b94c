"""What ``TrainingArguments.deepspeed`` asks for; read without torch and without DeepSpeed."""
