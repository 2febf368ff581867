"""Requests that nobody thought of, drawn from the contracts alone, put to every kernel that claims them.

``portakernel check --budget 10m`` runs them.
"""
