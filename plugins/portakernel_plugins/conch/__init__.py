"""Plugin ``conch``: the inference kernels of Conch (Stack AV), in Triton."""
