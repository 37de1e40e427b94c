"""All private names of Lightning that hf_compat uses, each with the contract it relies on."""
