#!/usr/bin/env bash
# A schedule that is stepped after each step of Opacus' optimizer ends too early under its `BatchMemoryManager`.
#
# Versions:  opacus 1.6.0, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: the manager divides a batch into smaller ones, and `optimizer.step()` in the loop does nothing until the last of
#            them, so that a loop can stay as it is. `scheduler.step()` beside it is not told: it counts the small batches.
#            No message says so. An optimizer that has stepped has `_is_last_step_skipped` false.
# Seen:      an epoch of four batches of about 16 in pieces of four: the schedule takes more than twice as many steps as the
#            optimizer, which took four.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install opacus==1.6.0 torch==2.13.0
run <<'PYTHON'
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
rows = torch.utils.data.TensorDataset(torch.rand(64, 1))
loader = torch.utils.data.DataLoader(rows, batch_size=16)
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                                               data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000)
updates, weight = 0, model._module.weight.item()
with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as pieces:
    for (batch,) in pieces:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        schedule.step()
        updates += model._module.weight.item() != weight
        weight = model._module.weight.item()
print("batches:", len(loader), "updates:", updates, "steps of the schedule:", schedule.last_epoch)
assert updates == len(loader) == 4
assert schedule.last_epoch > 2 * updates
PYTHON
