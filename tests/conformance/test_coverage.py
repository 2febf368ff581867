"""Claims of dtypes that no case runs in are named, but for those that no one call has together."""

from __future__ import annotations

from portakernel.contracts import contract
from portakernel.registry.registry import Registry
from portakernel_kit.conformance.coverage import uncovered


def test_a_dtype_that_depends_on_a_parameter_is_asked_for_where_that_allows_it():
    described = contract("grouped_mm")
    variants = [claim for _, claim in Registry().kernels["reference.grouped_mm"].variants]
    ran = [(case, (("a", "float32"), ("b", "float32"))) for case in described.cases]
    missing = uncovered(described, variants, ran, backward=True, together=False)
    assert "claims a=float8_e5m2, and no case runs in it" in missing
    assert "claims bias=float16, and no case runs in it" in missing
    # a bias has a's dtype where a is no float8, and a is float8 where a bias is not
    assert not [text for text in missing if text.startswith("claims bias=float8")]
