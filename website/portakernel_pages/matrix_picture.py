"""The picture of the support matrix as ``docs/matrix.svg``, which code hosts show in ``docs/matrix.md``."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from portakernel.matrix.page.levels import Levels, possible_levels

_CELL, _GAP, _LEFT, _TOP = 16, 1, 168, 118
_PAD = 10
_STEP, _BETWEEN, _LEGEND = _CELL + _GAP, 8, 178


def svg(levels: Levels) -> str:
    """The picture: each op a row, each architecture a column, a letter and a colour for the best that is proven."""
    places = _places(levels)
    width = max(places) + _CELL + _GAP + 2 * _PAD
    height = _TOP + len(levels.ops) * _STEP + 2 * _PAD
    size = f'width="{width}" height="{height}"'
    # a page may be dark where the reader's system is light, and the other way round: so it has a ground of its own
    lines = [f'<rect class="ground" x="{-_PAD}" y="{-_PAD}" {size}/>', "<defs>", *_cells(), "</defs>"]
    lines += [*_legend(), *_heads(levels, places)]
    for i, op in enumerate(levels.ops):
        lines += _row(op, levels, places, _TOP + i * _STEP)
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-_PAD} {-_PAD} {width} {height}" {size}'
        f' role="img" aria-labelledby="title">\n<title id="title">{TITLE}</title>\n<style>\n{_style()}\n</style>\n'
        f"{body}\n</svg>\n"
    )


TITLE = "The best that is proven of each op (rows) on each architecture (columns)"


def with_picture(page: str, name: str) -> str:
    """The page in Markdown with the picture below its title."""
    head, _, rest = page.partition("\n\n")
    legend = "; ".join(f"{level.letter}: {level.words}" for level in possible_levels())
    return f"{head}\n\n![{TITLE}]({name})\n\nThe best that is proven, as the record has it. {legend}.\n\n{rest}"


def _places(levels: Levels) -> list[int]:
    """The left side of each column; vendors stand a little apart."""
    places, left, before = list[int](), _LEFT, ""
    for column in levels.columns:
        left += _BETWEEN if before not in ("", column.vendor) else 0
        places.append(left)
        left, before = left + _STEP, column.vendor
    return places


def _legend() -> Iterator[str]:
    for i, level in enumerate(possible_levels()):
        left, top = i * _LEGEND, 4
        yield f'<use href="#{level.name}" x="{left}" y="{top}"/>'
        yield f'<text x="{left + _CELL + 6}" y="{top + 12}">{escape(level.words)}</text>'


def _heads(levels: Levels, places: list[int]) -> Iterator[str]:
    named = set[str]()
    for left, column in zip(places, levels.columns, strict=True):
        if column.vendor not in named:
            named.add(column.vendor)
            yield f'<text class="vendor" x="{left}" y="44">{escape(column.vendor)}</text>'
        turned = f"translate({left + 12} {_TOP - 6}) rotate(-90)"
        yield f'<text class="arch" transform="{turned}">{escape(column.arch)}</text>'


def _row(op: str, levels: Levels, places: list[int], top: int) -> Iterator[str]:
    cells = "".join(
        f'<use href="#{level.name}" x="{left}"/>'
        for left, column in zip(places, levels.columns, strict=True)
        if (level := levels.cells.get((op, column))) is not None
    )
    yield f'<g transform="translate(0 {top})"><text class="op" y="12">{escape(op)}</text>{cells}</g>'


def _cells() -> Iterator[str]:
    """A cell of each level, to be used wherever one stands."""
    for level in possible_levels():
        shape = f'<rect x="0.5" y="0.5" width="{_CELL - 1}" height="{_CELL - 1}" rx="2"/>'
        letter = f'<text x="{_CELL / 2:g}" y="12">{level.letter}</text>'
        yield f'<g id="{level.name}" class="level {level.name}">{shape}{letter}</g>'


def _style() -> str:
    """What the page has for a style, colours included, so that the two look alike."""
    palette = files("portakernel.matrix.page").joinpath("palette.css").read_text(encoding="utf-8")
    return palette + _STYLE


_STYLE = """\
.ground { fill: var(--page); }
text { font: 12px system-ui, sans-serif; fill: var(--text); }
.op, .arch, .level text { font: 11px ui-monospace, monospace; }
.level text { text-anchor: middle; font-weight: 600; }
.vendor { font-size: 13px; font-weight: 700; }
.ran rect { fill: var(--ran-cell); }
.emulated rect { fill: var(--emulated-cell); }
.native rect { fill: var(--native-cell); }
.compiled rect { fill: var(--compiled-cell); }
.declared rect { fill: var(--declared-cell); }
.reference rect { fill: none; stroke: var(--faint); stroke-width: 0.5; }
:is(.ran, .emulated, .native) text { fill: var(--on-dark); }
.compiled text { fill: var(--on-light); }
.reference text { fill: var(--faint); }"""
