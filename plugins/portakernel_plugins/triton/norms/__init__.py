"""Normalisations and their gradients."""
