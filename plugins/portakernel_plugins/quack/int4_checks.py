"""The check of a 4-bit weight's groups that the manifest names. No torch here."""

from __future__ import annotations

from portakernel.authoring import check_groups

__all__ = ["check_groups"]
