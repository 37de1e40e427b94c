"""The methods of the Trainer in every release of transformers, by how they are used."""

import json

from hf_compat.overriding import NEVER_CALLED
from tests.support.paths import FACTS_FOLDER

METHODS = json.loads((FACTS_FOLDER / "trainer_api.json").read_text())["methods"]
"""Each method of any release to what is known of it."""

CALLED_BY_USERS = {
    "_save_tpu",
    "add_callback",
    "end",
    "get_learning_rates",
    "get_num_trainable_parameters",
    "get_optimizer_group",
    "hyperparameter_search",
    "log_metrics",
    "metrics_format",
    "pop_callback",
    "remove_callback",
    "save_metrics",
    "save_state",
    "tokenizer",
}
"""Methods that scripts call and no run does, so that an override of one is found by its caller."""

OVERRIDABLE = sorted(name for name in METHODS if name not in {*NEVER_CALLED, *CALLED_BY_USERS})
"""Methods that a subclass may override; they are called at upstream's points with upstream's arguments."""
