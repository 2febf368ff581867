"""Measuring every kernel that can serve a request, side by side: what ``portakernel bench`` runs."""
