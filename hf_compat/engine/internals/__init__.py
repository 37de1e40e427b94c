"""Every private name of Lightning that hf_compat touches, each with the contract it relies on."""
