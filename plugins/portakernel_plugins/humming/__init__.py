"""Plugin ``humming``: the 4-bit products of Humming (vLLM), compiled for each size when it first comes."""
