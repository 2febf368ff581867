"""Requests that nobody thought of, drawn from the contracts alone, put to every kernel that claims them.

``python -m portakernel_kit.conformance.drawn --device cuda:0 --seconds 400 --output drawn`` runs them.
"""
