"""The noise on input embeddings is transformers', bit for bit."""

from __future__ import annotations

import pytest
import torch
import transformers
from packaging.version import Version

from hf_compat.errors import ModelError
from hf_compat.optim.model_patches import activate_neftune, deactivate_neftune
from tests.support import helpers

if Version(transformers.__version__) >= Version("5.0"):
    from transformers.integrations.neftune import neftune_post_forward_hook
else:
    from transformers.trainer_utils import neftune_post_forward_hook

TOKENS = torch.tensor([[4, 5, 6], [7, 8, 9]])


def embedded(module, seed=0):
    torch.manual_seed(seed)
    return module(TOKENS)


@pytest.mark.parametrize("alpha", [5, 0.1, 7.5])
def test_noise_is_upstreams(alpha):
    """With one seed, embeddings with noise and the random state after them are equal."""
    model = helpers.gpt2()
    embeddings = model.get_input_embeddings()
    activate_neftune(model, alpha)
    mine, state = embedded(embeddings), torch.get_rng_state()

    other = helpers.gpt2()
    other.load_state_dict(model.state_dict())
    theirs = other.get_input_embeddings()
    theirs.neftune_noise_alpha = alpha
    theirs.register_forward_hook(neftune_post_forward_hook)
    assert torch.equal(mine, embedded(theirs))
    assert torch.equal(state, torch.get_rng_state())


def test_noise_is_bounded_and_only_for_training():
    """Noise stays within alpha / sqrt(3 tokens * 16 wide), and there is none in evaluation."""
    model = helpers.gpt2()
    embeddings = model.get_input_embeddings()
    plain = embeddings(TOKENS)
    activate_neftune(model, 5)
    noise = embedded(embeddings) - plain
    assert 0 < noise.abs().max() <= 5 / 48**0.5 + 1e-6
    model.eval()
    assert torch.equal(embeddings(TOKENS), plain)


def test_deactivate_leaves_no_trace():
    """After deactivation neither the noise nor the attribute is left, and a second time does no harm."""
    model = helpers.gpt2()
    embeddings = model.get_input_embeddings()
    plain = embeddings(TOKENS)
    handle = activate_neftune(model, 5)
    deactivate_neftune(model, handle)
    assert torch.equal(embeddings(TOKENS), plain)
    assert not hasattr(embeddings, "neftune_noise_alpha")
    deactivate_neftune(model, handle)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers
def test_looks_through_peft():
    """Of an adapter around a model, the model's own embeddings get the noise."""
    peft = pytest.importorskip("peft")
    model = helpers.gpt2()
    embeddings = model.get_input_embeddings()
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    handle = activate_neftune(wrapped, 5)
    assert embeddings.neftune_noise_alpha == 5
    deactivate_neftune(wrapped, handle)
    assert not hasattr(embeddings, "neftune_noise_alpha")


def test_needs_input_embeddings():
    """A model that does not name its embeddings is refused."""
    with pytest.raises(ModelError, match="PlainModel has none"):
        activate_neftune(helpers.PlainModel(), 5)
