"""Pages are looked at in a browser."""

from __future__ import annotations

from browsing import chromium, page

__all__ = ["chromium", "page"]
