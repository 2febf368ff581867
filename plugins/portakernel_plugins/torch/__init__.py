"""Plugin ``torch``: what PyTorch reaches in its own and the vendors' libraries."""
