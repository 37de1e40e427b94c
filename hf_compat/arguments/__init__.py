"""What a run is asked to do: ``TrainingArguments``, its enums, the rules of its fields, and upstream's releases."""
