"""Kernels are written in what Triton's compiler knows of Python: its interpreter runs all of it, and hides the rest.

A branch that no compiled call takes is looked at too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")

from triton.compiler.code_generator import CodeGenerator

import portakernel_plugins.triton

ROOT = Path(portakernel_plugins.triton.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if "jit" in path.read_text(encoding="utf-8"))
# What releases after the oldest that is supported have learnt.
TOO_NEW = (ast.NamedExpr,)


def compiled_functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Those that Triton or Gluon compiles; a function of compile-time values is Python's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            decorators = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
            if any(isinstance(d, ast.Attribute) and d.attr == "jit" for d in decorators):
                yield node


def refused(tree: ast.AST) -> list[str]:
    """Statements and expressions of compiled functions that the compiler has no translation of, and their lines."""
    found: list[str] = []
    for function in compiled_functions(tree):
        body = ast.Module(function.body, [])
        calls = (node for node in ast.walk(body) if isinstance(node, ast.Call))
        spread = {argument for call in calls for argument in call.args if isinstance(argument, ast.Starred)}
        for node in ast.walk(body):
            if not isinstance(node, (ast.stmt, ast.expr)) or node in spread:
                continue
            kind = type(node).__name__
            if not hasattr(CodeGenerator, f"visit_{kind}") or isinstance(node, TOO_NEW):
                found.append(f"{function.name}, line {node.lineno}: {kind}")
    return found


def test_a_tuple_that_another_is_unpacked_into_is_found_and_an_argument_list_is_not() -> None:
    text = "@triton.jit\ndef _f(x):\n    y = ({},)\n    return _g(*y)\n\ndef host(x):\n    return (*x, 1)\n"
    assert refused(ast.parse(text.format("x + x"))) == []
    assert refused(ast.parse(text.format("*x"))) == ["_f, line 3: Starred"]
    assert refused(ast.parse(text.format("z := x"))) == ["_f, line 3: NamedExpr"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_kernels_hold_nothing_that_triton_refuses(path: Path) -> None:
    assert refused(ast.parse(path.read_text(encoding="utf-8"))) == []
