"""Conditions on sizes that a traced graph may hold as symbols, some of them known only when it runs.

Asking such a symbol plainly ends the trace. On numbers each function is its argument: torch is imported where a symbol
is seen, which means that it is there.
"""

from __future__ import annotations

from typing import Any


def holds(condition: Any) -> bool:
    """Whether a condition that the op sets holds; where only the run can tell it does, and the graph checks it then."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import expect_true

    return bool(expect_true(condition))


def known(condition: Any) -> bool:
    """Whether a condition is sure to hold; where only the run can tell it counts as not met."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def is_symbol(value: Any) -> bool:
    """Whether ``value`` is a size that a traced graph leaves open: to compare it with a bound guards the graph."""
    return value is not None and not isinstance(value, (bool, int, float, str, tuple))


def left_to_the_run(value: Any) -> bool:
    """Whether a size is one that only the run can tell."""
    if not is_symbol(value):
        return False
    from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

    return bool(has_free_unbacked_symbols(value))
