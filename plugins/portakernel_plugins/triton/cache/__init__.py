"""Caches of serving: what is written into their pages."""
