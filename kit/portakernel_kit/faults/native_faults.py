"""Every fault of a C++, CUDA, HIP or Metal file, found in its tokens: comments, texts and directives are left alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from portakernel_kit.faults.fault import Fault, Place, numbered
from portakernel_kit.faults.source_text import SourceText

_TOKEN = re.compile(
    r"""(?P<skipped>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*
    |R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?[fFuUlLh]*)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign><<=|>>=|<=|>=|==|!=|&&|\|\||\+=|-=|\*=|/=|<<|>>|\+\+|--|->|::|[-+*/%<>=!&|^~?:;,.(){}\[\]])""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
# Signs that stand between spaces have two operands; `Type* name` and `Vector<int>` have other ones.
_BETWEEN: Mapping[str, tuple[str, Sequence[str]]] = {
    "+": ("arithmetic", ("-",)), "-": ("arithmetic", ("+",)), "*": ("arithmetic", ("/",)), "/": ("arithmetic", ("*",)),
    "%": ("arithmetic", ("/",)), "<<": ("arithmetic", (">>",)), ">>": ("arithmetic", ("<<",)),
    "<": ("comparison", ("<=", ">")), "<=": ("comparison", ("<",)), ">": ("comparison", (">=", "<")),
    ">=": ("comparison", (">",)), "==": ("comparison", ("!=",)), "!=": ("comparison", ("==",)),
    "&&": ("boolean", ("||",)), "||": ("boolean", ("&&",)), "&": ("arithmetic", ("|",)), "|": ("arithmetic", ("&",)),
    "+=": ("arithmetic", ("-=", "=")), "-=": ("arithmetic", ("+=", "=")), "*=": ("arithmetic", ("/=", "=")),
    "/=": ("arithmetic", ("*=", "=")),
}  # fmt: skip
_WORDS: Mapping[str, str] = {
    "max": "min", "min": "max", "fmax": "fmin", "fmin": "fmax", "fmaxf": "fminf", "fminf": "fmaxf", "exp": "exp2",
    "expf": "exp2f", "exp2f": "expf", "__expf": "exp2f", "sqrt": "cbrt", "sqrtf": "rsqrtf", "rsqrtf": "sqrtf",
    "logf": "log2f", "log2f": "logf", "sinf": "cosf", "cosf": "sinf", "ceilf": "floorf", "floorf": "ceilf",
    "true": "false", "false": "true", "double": "float",
}  # fmt: skip
_SYNCHRONISED = re.compile(r"__sync\w+|threadgroup_barrier|.*[bB]arrier|synchroni[sz]e")
_TEMPLATE = ("template", "static_assert", "using", "typename", "alignas", "__launch_bounds__")


def native_faults(content: bytes, file: str) -> list[Fault]:
    """The faults of a file's text, in its order; whether a compiler takes each is seen when it is tried."""
    source = SourceText(content)
    text = content.decode("latin-1")  # so that places count bytes
    tokens = [found for found in _TOKEN.finditer(text) if found.lastgroup not in ("skipped", "mark")]
    found = []
    for kind, start, end, after in _changes(text, tokens):
        line = source.line_of(start)
        place = Place(line, start, end, line, line)
        words = source.line(line)
        if not words.startswith(_TEMPLATE):
            found.append(Fault(file, words, kind, source.text(start, end), after, 0, place, untold=True))
    return list(numbered(found))


def _changes(text: str, tokens: Sequence[re.Match[str]]) -> Iterator[tuple[str, int, int, str]]:
    for place, token in enumerate(tokens):
        word, start, end = token[0], token.start(), token.end()
        if token["number"]:
            yield from (("constant", start, end, after) for after in _numbers(word))
        elif token["word"]:
            if word in _WORDS:
                kind = "constant" if word in ("true", "false") else "dtype" if word == "double" else "function"
                yield kind, start, end, _WORDS[word]
            elif word == "if" and (closed := _closed(tokens, place + 1)) is not None:
                yield from (("condition", tokens[place + 1].end(), closed, after) for after in ("true", "false"))
            elif (closed := _waited(text, tokens, place)) is not None:
                yield "statement", start, closed + 1, ""
        elif word in _BETWEEN and text[start - 1 : start].isspace() and text[end : end + 1].isspace():
            kind, others = _BETWEEN[word]
            yield from (("update" if after == "=" else kind, start, end, after) for after in others)
    for left, right in pairwise(tokens):
        if left[0] == "!" and right["word"]:
            yield "not", left.start(), left.end(), ""
        elif left[0] == "(" and right[0] == "-":
            yield "sign", right.start(), right.end(), ""


def _waited(text: str, tokens: Sequence[re.Match[str]], place: int) -> int | None:
    """Where a statement closes in which threads wait for each other; None where the token begins none."""
    closed = _closed(tokens, place + 1) if _SYNCHRONISED.fullmatch(tokens[place][0]) else None
    is_statement = not place or tokens[place - 1][0] in ";{}"
    return closed if closed is not None and is_statement and text[closed + 1 : closed + 2] == ";" else None


def _numbers(word: str) -> Iterator[str]:
    """The next number and nothing; for an epsilon a thousand times as much."""
    digits = word.rstrip("fFuUlLh") if not word.lower().startswith("0x") else word.rstrip("uUlL")
    ending = word[len(digits) :]
    try:
        value = int(digits, 0)
    except ValueError:
        try:
            number = float(digits)
        except ValueError:  # 0123, which C++ reads otherwise
            return
        yield f"{1.0 if not number else number * (1000 if number < 1e-3 else 1.5)!r}{ending}"
        if number:
            yield f"0.0{ending}"
        return
    yield f"{value + 1}{ending}"
    if value:
        yield f"0{ending}"


def _closed(tokens: Sequence[re.Match[str]], opening: int) -> int | None:
    """Where the parenthesis closes that the token at ``opening`` is; None where that is none."""
    depth = 0
    for token in tokens[opening:] if opening < len(tokens) and tokens[opening][0] == "(" else ():
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth:
            return token.start()
    return None
