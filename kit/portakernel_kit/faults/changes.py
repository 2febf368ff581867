"""What may be wrong in an expression: the pieces of text that each kind of fault replaces.

To add a kind, write a function that yields its changes of a node, or add to one, name it in ``CHANGES``, and list the
kind in docs/cli.md. Changes that are no Python are dropped by whoever asks; what cannot change a result gets a rule in
``python_faults``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from portakernel_kit.faults.source_text import SourceText

# Each is replaced by the other ones; the text is Python's.
_ARITHMETIC: Mapping[type[ast.operator], tuple[str, Sequence[str]]] = {
    ast.Add: ("+", ("-",)), ast.Sub: ("-", ("+",)), ast.Mult: ("*", ("/",)), ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*",)), ast.Mod: ("%", ("//",)), ast.Pow: ("**", ("*",)), ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)), ast.BitAnd: ("&", ("|",)), ast.BitOr: ("|", ("&",)), ast.BitXor: ("^", ("|",)),
    ast.MatMult: ("@", ("*",)),
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], tuple[str, Sequence[str]]] = {
    ast.Lt: ("<", ("<=", ">")), ast.LtE: ("<=", ("<",)), ast.Gt: (">", (">=", "<")), ast.GtE: (">=", (">",)),
    ast.Eq: ("==", ("!=",)), ast.NotEq: ("!=", ("==",)), ast.Is: ("is", ("is not",)), ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)), ast.NotIn: ("not in", ("in",)),
}  # fmt: skip
# Functions that one takes for another.
_FUNCTIONS: Mapping[str, str] = {
    "max": "min", "min": "max", "sum": "max", "amax": "amin", "amin": "amax", "mean": "sum", "maximum": "minimum",
    "minimum": "maximum", "exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log", "rsqrt": "sqrt", "sqrt": "rsqrt",
    "sin": "cos", "cos": "sin", "cumsum": "cumprod", "argmax": "argmin", "argmin": "argmax", "any": "all", "all": "any",
    "ceil": "floor", "floor": "ceil", "abs": "neg", "zeros": "ones", "ones": "zeros", "zeros_like": "ones_like",
}  # fmt: skip
_DTYPES: Mapping[str, Sequence[str]] = {
    "float64": ("float32",), "float32": ("float16", "bfloat16"), "float16": ("bfloat16",), "bfloat16": ("float16",),
}  # fmt: skip
_CASTS = frozenset(("to", "float", "double", "half", "type_as"))
_SMALL = 1e-3  # below it a number is an epsilon


@dataclass(frozen=True, slots=True)
class Change:
    """A piece of text replaced by another, and the kind of fault that is."""

    kind: str
    start: int
    end: int
    after: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What surrounds a node: the file's text, and the parameters of the function that it stands in."""

    source: SourceText
    parameters: tuple[str, ...] = ()

    def over(self, kind: str, node: ast.expr | ast.stmt, after: str | ast.expr) -> Change:
        """The node replaced by a text, or by one of its own parts."""
        text = after if isinstance(after, str) else self.kept(after)
        return Change(kind, *self.source.span(node), text)

    def kept(self, part: ast.expr) -> str:
        """A part's text where it stands for the whole; on one line, and as one operand."""
        text = self.source.of(part)
        loose = isinstance(
            part, (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp, ast.Lambda, ast.NamedExpr)
        )
        return f"({text})" if loose or "\n" in text else text

    def between(self, kind: str, left: ast.expr, right: ast.expr, before: str, after: str) -> Change | None:
        """The operator between two nodes replaced by another."""
        start, end = self.source.span(left)[1], self.source.span(right)[0]
        gap = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), self.source.text(start, end))
        found = re.search(r"\s+".join(map(re.escape, before.split())), gap)
        if found is None:
            return None
        begin = start + len(gap[: found.start()].encode())
        return Change(kind, begin, begin + len(found[0].encode()), after)


def binary(node: ast.BinOp, scope: Scope) -> Iterator[Change | None]:
    """Another operator, or one of the operands alone; of strides, another one."""
    before, others = _ARITHMETIC[type(node.op)]
    for after in others:
        yield scope.between("arithmetic", node.left, node.right, before, after)
    joined = isinstance(node.op, (ast.BitAnd, ast.BitOr))
    kind = "mask" if joined else "term" if isinstance(node.op, (ast.Add, ast.Sub)) else "factor"
    yield scope.over(kind, node, node.left)
    if joined or isinstance(node.op, (ast.Add, ast.Mult)):
        yield scope.over(kind, node, node.right)
    for part in (node.left, node.right):
        strides = [name for name in scope.parameters if "stride" in name.lower()]
        if isinstance(part, ast.Name) and part.id in strides and len(strides) > 1:
            yield scope.over("stride", part, strides[(strides.index(part.id) + 1) % len(strides)])
        elif isinstance(part, ast.Name):
            yield from _another(part, scope)


def comparison(node: ast.Compare, scope: Scope) -> Iterator[Change | None]:
    """The bound taken in or left out, or the other side of it."""
    for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
        before, others = _COMPARISONS[type(operator)]
        for after in others:
            yield scope.between("comparison", left, right, before, after)


def boolean(node: ast.BoolOp, scope: Scope) -> Iterator[Change | None]:
    """``and`` for ``or``, and each condition left out."""
    before, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in zip(node.values, node.values[1:], strict=False):
        yield scope.between("boolean", left, right, before, after)
    parts = [scope.kept(value) for value in node.values]
    for left_out in range(len(parts)):
        yield scope.over("boolean", node, f" {before} ".join(parts[:left_out] + parts[left_out + 1 :]))


def unary(node: ast.UnaryOp, scope: Scope) -> Iterator[Change | None]:
    """Without the sign, or without ``not``."""
    if isinstance(node.op, (ast.USub, ast.Not, ast.Invert)) and not isinstance(node.operand, ast.Constant):
        yield scope.over("not" if isinstance(node.op, ast.Not) else "sign", node, node.operand)


def constant(node: ast.Constant, scope: Scope) -> Iterator[Change | None]:
    """The next number, nothing, and for an epsilon a thousand times as much."""
    value = node.value
    if isinstance(value, bool):
        yield scope.over("constant", node, str(not value))
    elif isinstance(value, int):
        yield scope.over("constant", node, str(value + 1))
        if value:
            yield scope.over("constant", node, "0")
    elif isinstance(value, float):
        yield scope.over("constant", node, repr(1.0 if not value else value * (1000 if abs(value) < _SMALL else 1.5)))
        if value:
            yield scope.over("constant", node, "0.0")


def attribute(node: ast.Attribute, scope: Scope) -> Iterator[Change | None]:
    """Another dtype: a narrower one."""
    if isinstance(node.value, ast.Name):
        for after in _DTYPES.get(node.attr, ()):
            yield scope.over("dtype", node, f"{node.value.id}.{after}")


def call(node: ast.Call, scope: Scope) -> Iterator[Change | None]:
    """Another function, arguments left out or taken for others, a cast that is not made."""
    function = node.func
    if isinstance(function, ast.Attribute):
        _, end = scope.source.span(function)
        if function.attr in _CASTS and len(node.args) + len(node.keywords) <= 1:
            yield scope.over("cast", node, function.value)
        if function.attr in _FUNCTIONS:
            yield Change("function", end - len(function.attr), end, _FUNCTIONS[function.attr])
    names = {keyword.arg for keyword in node.keywords}
    for keyword in node.keywords:
        if keyword.arg == "other" and "mask" in names:
            yield scope.over("other", keyword.value, "1.0" if scope.source.of(keyword.value) in "0.0" else "0")
        elif keyword.arg is not None:
            kind = "mask" if keyword.arg == "mask" else "keyword"
            dropped = ("mask", "other") if kind == "mask" else (keyword.arg,)
            yield _without(node, dropped, kind, scope)
    if isinstance(function, ast.Name) and function.id == "range" and not node.keywords:
        stop = node.args[min(1, len(node.args) - 1)]
        yield scope.over("bound", stop, f"{scope.kept(stop)} - 1")
    for argument in node.args:
        if isinstance(argument, ast.Name):
            yield from _another(argument, scope)


def _without(node: ast.Call, dropped: Sequence[str], kind: str, scope: Scope) -> Change | None:
    """A call without some of its keywords; the text from the first of its arguments on is put together anew."""
    positional = [scope.source.of(argument) for argument in node.args]
    keywords = [scope.source.of(keyword) for keyword in node.keywords if keyword.arg not in dropped]
    given: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
    start = min(scope.source.span(one)[0] for one in given)
    end = max(scope.source.span(one)[1] for one in given)
    if any(isinstance(argument, (ast.Starred, ast.GeneratorExp)) for argument in node.args):
        return None
    texts = [" ".join(text.split()) if "#" not in text else text for text in (*positional, *keywords)]
    return Change(kind, start, end, ", ".join(texts))


def _another(node: ast.Name, scope: Scope) -> Iterator[Change]:
    """The next parameter of the function for this one."""
    names = [name for name in scope.parameters if name.isupper() == node.id.isupper()]
    if node.id in names and len(names) > 1:
        yield scope.over("name", node, names[(names.index(node.id) + 1) % len(names)])


def cut(node: ast.Slice, scope: Scope) -> Iterator[Change | None]:
    """A bound of a slice left out."""
    for bound in (node.lower, node.upper):
        if bound is not None:
            yield Change("bound", *scope.source.span(bound), "")


def conditional(node: ast.IfExp | ast.If, scope: Scope) -> Iterator[Change | None]:
    """The condition always or never true."""
    for after in ("True", "False"):
        yield scope.over("condition", node.test, after)


def loop(node: ast.While, scope: Scope) -> Iterator[Change | None]:
    """A loop that never begins."""
    yield scope.over("condition", node.test, "False")


def returned(node: ast.Return, scope: Scope) -> Iterator[Change | None]:
    """The first two of several results taken for each other."""
    if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
        first, second = (scope.source.of(part) for part in node.value.elts[:2])
        start, end = scope.source.span(node.value.elts[0])[0], scope.source.span(node.value.elts[1])[1]
        yield Change("return", start, end, f"{second}, {first}")


def updated(node: ast.AugAssign, scope: Scope) -> Iterator[Change | None]:
    """Another operator, or an assignment that forgets what was there."""
    before, others = _ARITHMETIC[type(node.op)]
    for after in others:
        yield scope.between("arithmetic", node.target, node.value, f"{before}=", f"{after}=")
    yield scope.between("update", node.target, node.value, f"{before}=", "=")


def called(node: ast.Expr, scope: Scope) -> Iterator[Change | None]:
    """A call for what it does, left out."""
    if isinstance(node.value, ast.Call):
        yield scope.over("statement", node, "pass")


# What is wrong in a node of each kind.
CHANGES: Mapping[type[ast.AST], Callable[..., Iterator[Change | None]]] = {
    ast.BinOp: binary, ast.Compare: comparison, ast.BoolOp: boolean, ast.UnaryOp: unary, ast.Constant: constant,
    ast.Attribute: attribute, ast.Call: call, ast.Slice: cut, ast.IfExp: conditional, ast.If: conditional,
    ast.While: loop, ast.Return: returned, ast.AugAssign: updated, ast.Expr: called,
}  # fmt: skip
