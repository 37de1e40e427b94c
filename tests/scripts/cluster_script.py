"""A short training in a process that a cluster has started; each writes down who it is, as each side has it.

Words: the folder; how the cluster environment is handed on (``detected``: not at all, ``passed``: to the Trainer,
``early``: before there are training arguments); the class that Lightning would use; and fields to set to True.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from lightning.fabric.plugins import environments
from lightning.fabric.plugins.environments import ClusterEnvironment

from hf_compat import Trainer, TrainingArguments
from hf_compat.lightning import use_cluster_environment
from tests.support.helpers import ListDataset, PlainModel, vector_rows


class Own(ClusterEnvironment):
    """A scheduler that Lightning does not know."""

    creates_processes_externally = True
    main_address = "127.0.0.1"
    ended = 0

    @property
    def main_port(self):
        return int(os.environ["OWN_PORT"])

    @staticmethod
    def detect():
        return "OWN_RANK" in os.environ

    def world_size(self):
        return 2

    def set_world_size(self, size):
        pass

    def global_rank(self):
        return int(os.environ["OWN_RANK"])

    def set_global_rank(self, rank):
        pass

    def local_rank(self):
        return self.global_rank()

    def node_rank(self):
        return 0

    def teardown(self):
        Own.ended += 1


def answers(environment):
    """Return what Lightning would know of this process."""
    return {
        "rank": environment.global_rank(),
        "local_rank": environment.local_rank(),
        "node_rank": environment.node_rank(),
        "world_size": environment.world_size(),
        "address": environment.main_address,
    }


folder, handed_on, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
variables = dict(os.environ)
made = Own() if kind == "Own" else getattr(environments, kind)()
lightnings = answers(made)
if handed_on == "detected" or kind == "Own":
    os.environ.clear()
    os.environ.update(variables)  # some environments write variables, when they are made or asked
if handed_on == "early":
    use_cluster_environment(made)
args = TrainingArguments(
    str(folder / "output"),
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
    num_train_epochs=2,
    per_device_train_batch_size=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    log_level="info",
    log_level_replica="error",
    **dict.fromkeys(sys.argv[4:], True),
)
first = [args.process_index, args.world_size, args.should_log]
with args.main_process_first(local=False):
    prepared = folder / "prepared"
    alone = not prepared.exists()
    prepared.touch()
torch.manual_seed(0)
trainer = Trainer(
    PlainModel(dropout=0.0),
    args,
    train_dataset=ListDataset(vector_rows(16)),
    eval_dataset=ListDataset(vector_rows(7, seed=1)),
    lightning={} if handed_on == "detected" else {"plugins": [made]},
)
trainer.train()
weights = b"".join(weight.detach().numpy().tobytes() for weight in trainer.model.parameters())
launch = args.launch
seen = {
    "lightnings": lightnings,
    "arguments": {
        "rank": args.process_index,
        "local_rank": args.local_process_index,
        "node_rank": launch.node_rank,
        "world_size": args.world_size,
        "address": launch.address,
    },
    "trainer": answers(trainer.lightning_trainer.strategy.cluster_environment),
    "first": first,
    "alone": alone,
    "nodes": trainer.lightning_trainer.num_nodes,
    "ended": Own.ended,
    "precision": trainer.args.mixed_precision,
    "weights": hashlib.sha256(weights).hexdigest(),
    "losses": [entry.get("eval_loss", entry.get("train_loss")) for entry in trainer.state.log_history],
}
(folder / f"{args.process_index}.json").write_text(json.dumps(seen))
