"""Quantisation, alone and behind what is quantised."""
