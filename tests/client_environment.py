"""The environments of clients: `make clients` builds them one by one, and `make test` skips what needs them."""

from __future__ import annotations

import importlib.util

import pytest


def require(client: str) -> None:
    """Skips the test module that calls this where ``client`` is not installed."""
    if importlib.util.find_spec(client) is None:
        reason = f"needs {client} in an environment of its own: make clients CLIENTS={client}"
        pytest.skip(reason, allow_module_level=True)
