"""The ISA documents' pseudocode as trees: tuples whose first item names the node.

Expressions: ``("number", kind, width, value)``, ``("name", n)``, ``("field", e, n)``, ``("at", e, i)``,
``("slice", e, high, low)``, ``("part", e, low, count)``, ``("call", name, arguments)``, ``("cast", width, kind, e)``,
``("join", parts)``, ``("unary", op, e)``, ``("binary", op, a, b)``, ``("choose", condition, a, b)``.
Statements: ``("assign", targets, op, e)``, ``("declare", name, kind, width, is_array)``, ``("if", branches, else)``,
``("for", name, first, last, body)``, ``("break",)``, ``("return", e)``, ``("do", e)``,
``("define", name, parameters, body)``.
"""

from __future__ import annotations

import functools
import re
from typing import Any

Node = tuple[Any, ...]

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<cast>\d+'[UIFB](?=[\s;(\[)]|$))
      | (?P<number>(?:\d+')?(?:0x[0-9a-fA-F]+|\d+\.\d+|\d+)(?:ULL|LL|U|F|L)?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<op>\*\*|\+:|&&|\|\||==|!=|<>|<=|>=|<<|>>|[-+|&^*]=|[-+*/%&|^~!<>=?:;,.(){}\[\]])""",
    re.VERBOSE,
)
_KEYWORDS = {"if", "then", "elsif", "else", "endif", "for", "do", "endfor", "break", "declare", "return", "lambda"}
_BINARY = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"), ("**",),
)  # fmt: skip


class NotPseudocodeError(Exception):
    """The text is prose, or uses what this reader does not know."""


@functools.cache
def parse(text: str) -> tuple[Node, ...]:
    """The statements of an instruction's pseudocode."""
    parser = _Parser(_tokens(text))
    made = parser.block(())
    if parser.kind != "end":
        raise NotPseudocodeError(f"{parser.value!r} begins no statement")
    return made


def _tokens(text: str) -> list[tuple[str, str]]:
    made, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotPseudocodeError(f"no token: {text[at : at + 20]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            made.append((kind, match.group()))
        at = match.end()
    return [*made, ("end", "")]


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens, self.at = tokens, 0

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    @property
    def value(self) -> str:
        return self.tokens[self.at][1]

    def take(self) -> str:
        if self.kind == "end":
            raise NotPseudocodeError("the text ends in the middle of a statement")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def accept(self, value: str) -> bool:
        if self.kind != "end" and self.value == value:
            self.at += 1
            return True
        return False

    def expect(self, value: str) -> None:
        if not self.accept(value):
            raise NotPseudocodeError(f"{value!r} expected at {self.value!r}")

    def block(self, ends: tuple[str, ...]) -> tuple[Node, ...]:
        made = []
        while self.kind != "end" and self.value not in ends:
            if not self.accept(";"):
                made.append(self.statement())
        return tuple(made)

    def statement(self) -> Node:
        if self.accept("if"):
            return self.conditional()
        if self.accept("for"):
            name = self.take()
            self.expect("in")
            first = self.expression()
            self.expect(":")
            last = self.expression()
            self.expect("do")
            body = self.block(("endfor",))
            self.expect("endfor")
            return "for", name, first, last, body
        if self.accept("break"):
            return ("break",)
        if self.accept("return"):
            return "return", self.expression()
        if self.accept("declare"):
            name = self.take()
            self.expect(":")
            width, kind = self.take().split("'")
            is_array = self.accept("[")
            if is_array:
                self.expression()
                self.expect("]")
            return "declare", name, kind, int(width), is_array
        left = self.expression()
        if self.value in ("+=", "-=", "|=", "^=", "*=", "&="):
            return "assign", (left,), self.take()[0], self.expression()
        targets = []
        while self.accept("="):
            if self.value == "lambda":
                return self.function(left)
            targets.append(left)
            left = self.expression()
        return ("assign", tuple(targets), "", left) if targets else ("do", left)

    def function(self, name: Node) -> Node:
        self.expect("lambda")
        self.expect("(")
        parameters = [self.take()]
        while self.accept(","):
            parameters.append(self.take())
        self.expect(")")
        self.expect("(")
        body = self.block((")",)) if self.value in _KEYWORDS else (("return", self.expression()),)
        self.expect(")")
        return "define", name[1], tuple(parameters), body

    def conditional(self) -> Node:
        branches, otherwise = [], ()
        while True:
            condition = self.expression()
            self.expect("then")
            branches.append((condition, self.block(("elsif", "else", "endif"))))
            if self.accept("elsif"):
                continue
            if self.accept("else"):
                otherwise = self.block(("endif",))
            self.expect("endif")
            return "if", tuple(branches), otherwise

    def expression(self) -> Node:
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        first = self.expression()
        self.expect(":")
        return "choose", condition, first, self.expression()

    def binary(self, level: int) -> Node:
        if level == len(_BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while self.kind == "op" and self.value in _BINARY[level]:
            left = ("binary", self.take(), left, self.binary(level + 1))
        return left

    def unary(self) -> Node:
        if self.kind == "op" and self.value in ("-", "~", "!", "+"):
            return "unary", self.take(), self.unary()
        return self.postfix(self.primary())

    def primary(self) -> Node:
        if self.kind == "cast":
            width, kind = self.take().split("'")
            self.expect("(")
            inside = self.expression()
            self.expect(")")
            return "cast", int(width), kind, inside
        if self.kind == "number":
            return _number(self.take())
        if self.accept("("):
            inside = self.expression()
            self.expect(")")
            return inside
        if self.accept("{"):
            parts = [self.expression()]
            while self.accept(","):
                parts.append(self.expression())
            self.expect("}")
            return "join", tuple(parts)
        if self.kind == "name" and self.value not in _KEYWORDS:
            return "name", self.take()
        raise NotPseudocodeError(f"{self.value!r} begins no expression")

    def postfix(self, node: Node) -> Node:
        while True:
            if self.accept("."):
                node = ("field", node, self.take())
            elif self.accept("["):
                first = self.expression()
                if self.accept(":"):
                    node = ("slice", node, first, self.expression())
                elif self.accept("+:"):
                    node = ("part", node, first, self.expression())
                else:
                    node = ("at", node, first)
                self.expect("]")
            elif self.value == "(" and node[0] == "name":
                self.take()
                arguments = []
                while not self.accept(")"):
                    arguments.append(self.expression())
                    self.accept(",")
                node = ("call", node[1], tuple(arguments))
            else:
                return node


def _number(text: str) -> Node:
    width = 0
    if "'" in text:
        head, text = text.split("'")
        width = int(head)
    match = re.fullmatch(r"(0x[0-9a-fA-F]+?|\d+\.\d+|\d+)(ULL|LL|U|F|L)?", text)
    if text.startswith("0x"):
        match = re.fullmatch(r"(0x[0-9a-fA-F]+)(ULL|LL|U)?", text)
    assert match is not None
    digits, suffix = match.group(1), match.group(2) or ""
    if "." in digits or suffix == "F":
        return "number", "f", width or (32 if suffix == "F" else 64), float(digits)
    kind = "u" if "U" in suffix else "b" if digits.startswith("0x") else "i"
    return "number", kind, width or (64 if "LL" in suffix else 32), int(digits, 0)
