"""Softmax and the losses over vocabularies."""
