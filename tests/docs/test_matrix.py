"""docs/matrix.md is what the manifests claim today."""

from __future__ import annotations

from pathlib import Path

from portakernel_pages.generate import generated

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"


def test_the_support_matrix_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == generated()[PAGE], "docs/matrix.md is stale: run `make generate`"
