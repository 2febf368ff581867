"""A browser that looks at pages, without a network; ``conftest.py`` of the folders whose tests need it imports it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PHONE, DESKTOP = {"width": 360, "height": 800}, {"width": 1280, "height": 900}


# Of the module: while it lives, no other test of the process could run an event loop of its own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="lacks playwright: pip install 'portakernel[test]'")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"lacks a browser: {', '.join(BROWSERS)}; none is installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page without a network, which asks for nothing but files and logs nothing."""
    context = chromium.new_context(viewport=DESKTOP, offline=True)
    opened, complaints = context.new_page(), []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda asked: asked.url.startswith(("file:", "data:")) or complaints.append(asked.url))
    yield opened
    context.close()
    assert complaints == []
