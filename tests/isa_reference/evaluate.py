"""Pseudocode evaluated: values with a kind and a width, names looked up in a scope that the caller fills."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isa_reference import floats
from isa_reference.floats import BF16, F16, F32, F64, FORMATS, Format
from isa_reference.syntax import Node, NotPseudocodeError, parse

_BY_WIDTH = {16: F16, 32: F32, 64: F64}
SMALL = {"fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4}


@dataclass(frozen=True, slots=True)
class Value:
    """``kind``: u, i, f, g (bfloat16), b (bits) or a small float's name. Whole numbers are unbounded until they are stored or reread."""

    kind: str
    width: int
    value: int

    @property
    def bits(self) -> int:
        return self.value & ((1 << self.width) - 1)

    @property
    def form(self) -> Format:
        return BF16 if self.kind == "g" else _BY_WIDTH[self.width]

    @property
    def is_float(self) -> bool:
        return self.kind in "fg"

    @property
    def truth(self) -> bool:
        return self.bits != 0

    def seen_as(self, name: str) -> Value:
        """The same bits under another type: ``f32``, ``u16``, ``bf16``."""
        if name in SMALL:
            return Value(name, SMALL[name], self.value & ((1 << SMALL[name]) - 1))
        kind, width = ("g", 16) if name == "bf16" else (name[0], int(name[1:]))
        raw = self.value & ((1 << width) - 1)
        return Value(kind, width, signed(raw, width) if kind == "i" else raw)


def signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) & 1 else bits


def unsigned(value: int, width: int = 32) -> Value:
    return Value("u", width, value)


@dataclass(slots=True)
class Modes:
    """MODE: rounding and subnormals by size of format; what was rounded inexactly is noted nowhere."""

    round32: int = 0
    round16_64: int = 0
    keep_in32: bool = True
    keep_out32: bool = True
    keep_in16_64: bool = True
    keep_out16_64: bool = True

    def rounding(self, form: Format) -> int:
        return self.round32 if form is F32 else self.round16_64 if form is not BF16 else 0

    def taken(self, bits: int, form: Format) -> int:
        keep = self.keep_in32 if form is F32 else self.keep_in16_64 or form is BF16
        return bits & form.sign if not keep and floats.is_subnormal(bits, form) else bits

    def given(self, bits: int, form: Format) -> int:
        keep = self.keep_out32 if form is F32 else self.keep_out16_64 or form is BF16
        return bits & form.sign if not keep and floats.is_subnormal(bits, form) else bits


class _BreakError(Exception):
    pass


class _ReturnError(Exception):
    def __init__(self, value: Value) -> None:
        self.value = value


@dataclass(slots=True)
class Evaluator:
    """One execution: ``names`` are registers and variables; ``arrays`` have items by index, as VGPR and MEM do."""

    modes: Modes
    names: MutableMapping[str, Value]
    arrays: MutableMapping[str, Any] = field(default_factory=dict)
    other: Callable[[str], str | None] = lambda name: None  # pseudocode of another instruction, by name
    functions: dict[str, tuple[tuple[str, ...], Sequence[Node]]] = field(default_factory=dict)
    hooks: dict[str, Callable[..., Value]] = field(default_factory=dict)
    flushed: frozenset[str] = frozenset({"S0", "S1", "S2", "D0"})
    mode_rounding: int | None = None
    clamped: tuple[str, ...] = ("D0",)
    fnuz: bool = False  # of float8: the formats without infinities
    limits: bool = False  # MODE's FP16_OVFL: what is too large becomes the largest number

    def run(self, statements: Sequence[Node]) -> None:
        """Execute statements in order."""
        for node in statements:
            getattr(self, f"_do_{node[0]}")(node)

    def _do_assign(self, node: Node) -> None:
        _, targets, op, expression = node
        if (
            "clamp" in self.hooks
            and expression[0] == "field"
            and expression[1] == ("name", "tmp")
            and expression[2][0] in "ui"
        ):
            value = replace(self.names["tmp"], kind=expression[2][0])  # before it is cut to its size
        else:
            value = self.value(expression)
        if op:
            value = self._binary(op, self.value(targets[0]), value)
        for target in reversed(targets):
            self.store(target, value)

    def _do_declare(self, node: Node) -> None:
        _, name, kind, width, is_array = node
        if is_array:
            self.arrays.setdefault(name, {})
        elif name not in self.names:
            self.names[name] = Value(kind.lower(), width, 0)

    def _do_if(self, node: Node) -> None:
        for condition, body in node[1]:
            if self.value(condition).truth:
                return self.run(body)
        return self.run(node[2])

    def _do_for(self, node: Node) -> None:
        _, name, first, last, body = node
        try:
            for i in range(self.value(first).value, self.value(last).value + 1):
                self.names[name] = Value("i", 32, i)
                self.run(body)
        except _BreakError:
            pass

    def _do_break(self, node: Node) -> None:
        raise _BreakError

    def _do_return(self, node: Node) -> None:
        raise _ReturnError(self.value(node[1]))

    def _do_define(self, node: Node) -> None:
        self.functions[node[1]] = node[2], node[3]

    def _do_do(self, node: Node) -> None:
        self.value(node[1])

    # Expressions

    def value(self, node: Node) -> Value:
        """The value of an expression."""
        return getattr(self, f"_{node[0]}")(node)  # type: ignore[no-any-return]

    def _number(self, node: Node) -> Value:
        _, kind, width, number = node
        return Value("f", width, floats.from_python(number, _BY_WIDTH[width])) if kind == "f" else Value(*node[1:])

    def _name(self, node: Node) -> Value:
        name = node[1]
        if name in self.names:
            return self.names[name]
        if name in ("INF", "NAN", "PI"):
            number = {"INF": math.inf, "NAN": math.nan, "PI": math.pi}[name]
            return Value("f", 64, floats.from_python(number, F64))
        for start, forms in (("OVERFLOW_", "infinity"), ("UNDERFLOW_", "")):
            if name.startswith(start):
                form = FORMATS[name.removeprefix(start).lower()]
                return Value("f", form.width, form.infinity if forms else 0)
        raise NotPseudocodeError(f"no name {name}")

    def _field(self, node: Node) -> Value:
        _, inside, name = node
        if not _is_type(name):
            return self._name(("name", f"{_path(inside)}.{name}"))
        if inside in (("name", "INF"), ("name", "NAN")):
            form = FORMATS[name]
            return Value("f", form.width, form.infinity if inside[1] == "INF" else form.nan)
        if inside[0] in ("unary",) and inside[2] == ("name", "INF"):
            form = FORMATS[name]
            return Value("f", form.width, form.infinity | (form.sign if inside[1] == "-" else 0))
        if inside[0] == "at" and inside[1] == ("name", "MEM"):
            return self._memory_read(inside[2], name)
        made = self.value(inside).seen_as(name)
        if made.is_float and _root(inside) in self.flushed:
            return Value(made.kind, made.width, self.modes.taken(made.bits, made.form))
        return made

    def _at(self, node: Node) -> Value:
        _, inside, index = node
        if inside[0] == "name" and inside[1] in self.arrays:
            array = self.arrays[inside[1]]
            at = self.value(index).value
            return array[at] if at in array else Value("b", 32, 0)
        if inside[0] == "at" and inside[1] == ("name", "VGPR"):
            return self.hooks["read_vgpr"](self.value(inside[2]), self.value(index))
        if inside == ("name", "SGPR"):
            return self.hooks["read_sgpr"](self.value(index))
        if inside == ("name", "MEM"):
            return self._memory_read(index, "b32")
        return unsigned(self.value(inside).value >> self.value(index).value & 1, 1)

    def _slice(self, node: Node) -> Value:
        _, inside, high, low = node
        top, bottom = self.value(high).value, self.value(low).value
        kind = self.value(inside)
        if top < bottom:  # bits in the other order
            made = sum((kind.value >> bottom - i & 1) << i for i in range(bottom - top + 1))
            return Value(kind.kind, bottom - top + 1, made)
        made = kind.value >> bottom & ((1 << (top - bottom + 1)) - 1)
        return Value("u" if kind.kind in "ui" else "b", top - bottom + 1, made)

    def _part(self, node: Node) -> Value:
        _, inside, low, count = node
        width = self.value(count).value
        return unsigned(self.value(inside).value >> self.value(low).value & ((1 << width) - 1), width)

    def _memory_read(self, address: Node, kind: str) -> Value:
        width = 16 if kind == "bf16" else int(kind[1:])
        return Value("b", width, self.hooks["load"](self.value(address).value, width)).seen_as(kind)

    def _join(self, node: Node) -> Value:
        made, width = 0, 0
        for part in node[1]:
            value = self.value(part)
            made, width = made << value.width | value.bits, width + value.width
        return Value("b", width, made)

    def _choose(self, node: Node) -> Value:
        return self.value(node[2] if self.value(node[1]).truth else node[3])

    def _cast(self, node: Node) -> Value:
        _, width, kind, inside = node
        value = self.value(inside)
        if kind == "F":
            form = _BY_WIDTH[width]
            if value.is_float:
                return Value("f", width, self._converted(value, form))
            if inside[0] == "number":  # written in hexadecimal: the bits of a float
                return Value("f", width, value.bits)
            return Value("f", width, floats.from_integer(value.value, form, self.rounding(form)))
        if value.is_float and kind != "B":
            low, high = (0, (1 << width) - 1) if kind == "U" else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
            return Value(kind.lower(), width, floats.to_integer(value.bits, value.form, low, high))
        raw = value.value & ((1 << width) - 1)
        return Value(kind.lower(), width, signed(raw, width) if kind == "I" else raw)

    def _unary(self, node: Node) -> Value:
        _, op, inside = node
        value = self.value(inside)
        if op == "+":
            return value
        if op == "!":
            return unsigned(int(not value.truth), 1)
        if op == "~":
            return Value(value.kind, value.width, value.bits ^ ((1 << value.width) - 1))
        if value.is_float:
            return Value(value.kind, value.width, value.bits ^ value.form.sign)
        return Value(value.kind, value.width, -value.value)

    def _binary(self, *arguments: Any) -> Value:
        if len(arguments) == 1:
            _, op, first, second = arguments[0]
            if op in ("&&", "||"):
                left = self.value(first).truth
                return unsigned(
                    int(left and self.value(second).truth if op == "&&" else left or self.value(second).truth), 1
                )
            if op == "==" and (special := self._special_equal(first, second)) is not None:
                return unsigned(int(special), 1)
            a, b = self.value(first), self.value(second)
        else:
            op, a, b = arguments
        if a.is_float or b.is_float:
            return self._float_binary(op, a, b)
        return _whole_binary(op, a, b)

    def _special_equal(self, first: Node, second: Node) -> bool | None:
        """``x == -0.0`` and ``x == +0.0`` mean the sign too; ``x == DENORM.f32`` asks for the class."""
        if second[0] == "field" and second[1] == ("name", "DENORM"):
            form = FORMATS[second[2]]
            bits = self._converted(self.value(first), form)
            return floats.is_subnormal(bits, form)
        if second[0] == "unary" and second[2][0] == "number" and second[2][1] == "f" and second[2][3] == 0.0:
            value = self.value(first)
            return value.bits == (value.form.sign if second[1] == "-" else 0)
        return None

    def _float_binary(self, op: str, a: Value, b: Value) -> Value:
        form = max((v.form for v in (a, b) if v.is_float), key=lambda f: f.width)
        kind = "g" if form is BF16 else "f"
        x, y = (self._converted(v, form) if v.is_float else floats.from_integer(v.value, form, 0) for v in (a, b))
        compared = {
            "==": floats.equal(x, y, form), "!=": not floats.equal(x, y, form), "<": floats.less(x, y, form),
            ">": floats.less(y, x, form), "<=": floats.less(x, y, form) or floats.equal(x, y, form),
            ">=": floats.less(y, x, form) or floats.equal(x, y, form),
            "<>": floats.less(x, y, form) or floats.less(y, x, form),
        }  # fmt: skip
        if op in compared:
            return unsigned(int(compared[op]), 1)
        mode = self.rounding(form)
        if op == "**":
            power = max(-5000, min(5000, b.value if not b.is_float else int(floats.to_python(y, form))))
            return Value(kind, form.width, floats.rounded((0, 1, power), form))
        make = {"+": floats.add, "-": floats.add, "*": floats.multiply, "/": floats.divide}[op]
        bits = make(x, y ^ form.sign if op == "-" and not floats.is_nan(y, form) else y, form, mode)
        return Value(kind, form.width, self.modes.given(bits, form))

    def rounding(self, form: Format) -> int:
        return self.modes.rounding(form) if self.mode_rounding is None else self.mode_rounding

    def _converted(self, value: Value, form: Format) -> int:
        if value.form is form:
            return value.bits
        if floats.is_signalling(value.bits, value.form) and form.width > value.width:
            sign, payload = value.bits >> (value.width - 1), value.bits & ((1 << value.form.mantissa) - 1)
            return sign << (form.width - 1) | form.infinity | payload << (form.mantissa - value.form.mantissa)
        return floats.convert(value.bits, value.form, form, self.rounding(form))

    def _call(self, node: Node) -> Value:
        _, name, arguments = node
        if name in self.functions:
            parameters, body = self.functions[name]
            kept = dict(self.names)
            self.names.update(zip(parameters, map(self.value, arguments), strict=True))
            try:
                self.run(body)
            except _ReturnError as given:
                return given.value
            finally:
                for parameter in parameters:
                    self.names.pop(parameter, None)
                self.names.update(kept)
        values = [self.value(argument) for argument in arguments]
        if name in self.hooks:
            return self.hooks[name](*values)
        if name.startswith(("v_", "s_")) and (text := self.other(name)) is not None:
            return self._instruction(text, values)
        from isa_reference import functions, small

        function = functions.FUNCTIONS.get(name) or small.FUNCTIONS.get(name)
        if function is None:
            raise NotPseudocodeError(f"no function {name}")
        return function(self, *values)

    def _instruction(self, text: str, values: Sequence[Value]) -> Value:
        names: dict[str, Value] = {key: value for key, value in self.names.items() if "." in key}
        names.update({f"S{i}": Value("b", value.width, value.bits) for i, value in enumerate(values)})
        names["D0"] = Value("b", 128, 0)
        inner = Evaluator(self.modes, names, {}, self.other)
        inner.run(parse(text))
        kind = next((v.kind for v in values), "b")
        return (
            Value(kind, values[0].width, names["D0"].value & ((1 << values[0].width) - 1))
            if kind != "i"
            else (
                Value("i", values[0].width, signed(names["D0"].value & ((1 << values[0].width) - 1), values[0].width))
            )
        )

    # Targets

    def store(self, target: Node, value: Value) -> None:
        """Write a value where an expression points."""
        kind = target[0]
        if kind == "name":
            name = target[1]
            old = self.names.get(name)
            if name == "ROUND_MODE":
                self.mode_rounding = value.value if value.value < 4 else None
            if name in ("SCC", "ROUND_MODE") or old is None or not name.startswith(("D0", "D1", "S0", "VCC", "EXEC")):
                declared = old is not None and name == "result"
                self.names[name] = Value(old.kind, old.width, value.bits) if declared and old else value
            else:
                self.names[name] = Value("b", old.width, value.bits)
        elif kind == "join":
            rest, width = value.value, 0
            for part in reversed(target[1]):
                width = int(part[2][1:]) if part[0] == "field" else self.value(part).width
                self.store(part, unsigned(rest & ((1 << width) - 1), width))
                rest >>= width
        elif kind == "field" and not _is_type(target[2]):
            self.names[f"{_path(target[1])}.{target[2]}"] = value
        elif kind == "field":
            self._store_field(target, value)
        elif kind == "slice":
            top, bottom = self.value(target[2]).value, self.value(target[3]).value
            self._merge(target[1], bottom, top - bottom + 1, value.bits)
        elif kind == "at":
            self._store_at(target, value)
        else:
            raise NotPseudocodeError(f"{target} cannot be written")

    def _store_field(self, target: Node, value: Value) -> None:
        _, inside, name = target
        width = SMALL[name] if name in SMALL else 16 if name == "bf16" else int(name[1:])
        if value.is_float and name[0] in "fb" and name not in ("b16", "b32", "b64") and _form(name) is not value.form:
            value = Value("f", width, self._converted(value, _form(name)))
        if value.is_float and _root(inside) in ("D0", "tmp") and name[0] in "fb" and name not in ("b32", "b64"):
            value = Value(value.kind, value.width, self.modes.given(value.bits, value.form))
        if "clamp" in self.hooks and inside[0] in ("name", "slice") and _root(inside) in self.clamped:
            value = self.hooks["clamp"](value, name)
        raw = value.value & ((1 << width) - 1)
        if inside[0] == "slice":
            bottom = self.value(inside[3]).value
            self._merge(inside[1], bottom, width, raw)
        elif inside[0] == "at":
            self._store_at(inside, Value("b", width, raw))
        elif inside[0] == "name":
            old = self.names.get(inside[1], Value("b", width, 0))
            wide = max(width, old.width)
            self.names[inside[1]] = Value("b", wide, old.bits >> width << width | raw)
            if "wrote" in self.hooks and inside[1] == "D0":
                self.hooks["wrote"](width)
        else:
            raise NotPseudocodeError(f"{target} cannot be written")

    def _store_at(self, target: Node, value: Value) -> None:
        _, inside, index = target
        if inside[0] == "name" and inside[1] in self.arrays:
            self.arrays[inside[1]][self.value(index).value] = value
        elif inside == ("name", "MEM"):
            self.hooks["store"](self.value(index).value, value.width, value.bits)
        elif inside[0] == "at" and inside[1] == ("name", "VGPR"):
            self.hooks["write_vgpr"](self.value(inside[2]), self.value(index), value)
        elif inside == ("name", "SGPR"):
            self.hooks["write_sgpr"](self.value(index), value)
        else:
            self._merge(inside, self.value(index).value, 1, value.value & 1)

    def _merge(self, inside: Node, low: int, width: int, bits: int) -> None:
        while inside[0] == "field" and _is_type(inside[2]):
            inside = inside[1]
        if inside[0] == "at":
            old = self.value(inside)
            mask = ((1 << width) - 1) << low
            self._store_at(inside, Value("b", max(old.width, low + width), (old.bits & ~mask) | bits << low))
            return
        if inside[0] != "name":
            raise NotPseudocodeError(f"{inside} cannot be written in part")
        old = self.names.get(inside[1], Value("b", 0, 0))
        mask = ((1 << width) - 1) << low
        self.names[inside[1]] = Value("b", max(old.width, low + width), (old.bits & ~mask) | (bits << low & mask))
        if "wrote" in self.hooks and inside[1] == "D0":
            self.hooks["wrote"](low + width)


def _form(name: str) -> Format:
    return FORMATS[name]


def _is_type(name: str) -> bool:
    return name == "bf16" or name in SMALL or (name[0] in "uifb" and name[1:].isdigit())


def _path(node: Node) -> str:
    return f"{_path(node[1])}.{node[2]}" if node[0] == "field" else str(node[1])


def _root(node: Node) -> str:
    while node[0] in ("field", "slice", "at", "part"):
        node = node[1]
    return str(node[1]) if node[0] == "name" else ""


def _whole_binary(op: str, a: Value, b: Value) -> Value:
    width = max(a.width, b.width)
    kind = "i" if a.kind == b.kind == "i" else "u"
    x, y = a.value, b.value
    compared: dict[str, Callable[[], bool]] = {
        "==": lambda: x == y, "!=": lambda: x != y, "<>": lambda: x != y, "<": lambda: x < y, ">": lambda: x > y,
        "<=": lambda: x <= y, ">=": lambda: x >= y,
    }  # fmt: skip
    if op in compared:
        if (a.kind == "u" or b.kind == "u") and (x < 0 or y < 0):  # a difference of unsigned numbers, or a constant
            x, y = x & ((1 << width) - 1), y & ((1 << width) - 1)
        return unsigned(int(compared[op]()), 1)
    if op == "<<":
        return Value(a.kind, a.width, (x << (y & 255)) & ((1 << a.width) - 1) if a.kind != "i" else x << (y & 255))
    if op == ">>":
        return Value(a.kind, a.width, x >> y if a.kind == "i" else a.bits >> y)
    if op in ("&", "|", "^"):
        made = {"&": x & y, "|": x | y, "^": x ^ y}[op]
        return Value(kind, width, made if kind == "i" else made & ((1 << width) - 1))
    if op == "**":
        return Value(kind, width, x**y)
    if op in ("/", "%"):
        if kind == "i":
            quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            return Value(kind, width, quotient if op == "/" else x - quotient * y)
        x, y = a.bits, b.bits
        return Value(kind, width, x // y if op == "/" else x % y)
    return Value(kind, width, {"+": x + y, "-": x - y, "*": x * y}[op])
