#!/usr/bin/env bash
# An adapter that was begun by a randomized decomposition is another one in each process that loads it.
#
# Versions:  peft 0.21.2, transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `init_lora_weights="pissa_niter_4"` takes the largest parts of a weight out of the base model, found by an
#            algorithm that draws from the global random generator. Loading the saved adapter onto the base model takes
#            parts out again, with that process's random numbers: what is left is not what the adapter was trained beside.
#            `"pissa"`, which decomposes exactly, is loaded as it was.
# Seen:      a saved adapter loaded under the random state of its beginning gives the same outputs, under another one outputs
#            that differ; with `pissa` the same under both.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install peft==0.21.2 transformers==5.24.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from peft import LoraConfig, PeftModel, get_peft_model

ROWS = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))


def base():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64))


def difference(start, seed):
    """Return how far the outputs are, at most, from those before the adapter was saved, in units of their size."""
    model = base()
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["0"], init_lora_weights=start))
    model.base_model.model[0].lora_B["default"].weight.data.mul_(1.5)  # as if it had been trained
    outputs = model(ROWS)
    model.save_pretrained(start)
    model = base()
    torch.manual_seed(seed)
    loaded = PeftModel.from_pretrained(model, start)(ROWS)
    return ((outputs - loaded).abs().max() / outputs.abs().max()).item()


for start in ("pissa", "pissa_niter_4"):
    same, other = difference(start, 1), difference(start, 2)
    print(f"{start}: loaded under the same random state {same:.1g} off, under another one {other:.1g}")
    assert same < 1e-4, same
    assert (other > 1e-3) == (start == "pissa_niter_4"), other
PYTHON
