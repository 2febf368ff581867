"""Embeddings of tokens and of positions."""
