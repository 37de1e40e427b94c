"""Makes the first update step of a tiny model and prints, as JSON, the modules that are loaded then."""

import json
import sys

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from tests.support.helpers import ListDataset, PlainModel, vector_rows


class Tells(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            print(json.dumps(sorted(sys.modules)))


args = TrainingArguments(sys.argv[1], report_to="none", use_cpu=True, disable_tqdm=True, max_steps=2)
Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(32)), callbacks=[Tells()]).train()
