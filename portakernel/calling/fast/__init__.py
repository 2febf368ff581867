"""The functions that calls go through, written as source text for each op."""
