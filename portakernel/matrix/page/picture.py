"""The picture that the page opens with: ops by architectures, each cell a link to the rows that are about it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from urllib.parse import urlencode

from portakernel.matrix.page.levels import Column, Level, Levels, possible_levels


def picture(levels: Levels) -> str:
    """The picture as a grid with its legend: colours and letters say the same, names say it to a screen reader."""
    if not levels.cells:
        return ""
    rows = "\n".join(_row(op, levels) for op in levels.ops)
    columns = "".join(
        f'<th role="columnheader" scope="col"{_first(column, levels)}>'
        f"{_link(_of(column), f'all of {_arch(column)}', column.arch or 'any')}</th>"
        for column in levels.columns
    )
    vendors = "".join(
        f'<th role="columnheader" scope="colgroup" colspan="{count}" class="first">'
        f"{_link({'vendor': vendor}, f'all of {vendor}', vendor)}</th>"
        for vendor, count in levels.vendors.items()
    )
    return _FIGURE.format(
        legend="".join(map(_explained, possible_levels())), vendors=vendors, columns=columns, rows=rows
    )


_FIGURE = """\
<figure id="picture">
<figcaption>
<p>The best that is proven of each op on each architecture.
A cell, an op, an architecture or a vendor leaves its rows below.</p>
<ul class="legend" aria-label="Legend">{legend}</ul>
</figcaption>
<div class="grid" role="region" aria-label="Ops by architectures">
<table role="grid" aria-label="The best that is proven" aria-readonly="true">
<thead role="rowgroup">
<tr role="row"><td role="gridcell" class="corner"></td>{vendors}</tr>
<tr role="row"><td role="gridcell" class="corner"></td>{columns}</tr>
</thead>
<tbody role="rowgroup">
{rows}
</tbody>
</table>
</div>
</figure>"""


def _explained(level: Level) -> str:
    return (
        f'<li><span class="level {level.name}" aria-hidden="true">{level.letter}</span> '
        f"<b>{escape(level.words)}</b>: {escape(level.meaning)}</li>"
    )


def _row(op: str, levels: Levels) -> str:
    cells = "".join(_cells(op, levels))
    return f'<tr role="row"><th role="rowheader" scope="row">{_link({"op": op}, f"all of {op}", op)}</th>{cells}</tr>'


def _cells(op: str, levels: Levels) -> Iterator[str]:
    for column in levels.columns:
        level, first = levels.cells.get((op, column)), _first(column, levels)
        if level is None:
            yield f'<td role="gridcell"{first}></td>'
        else:
            name = f"{op} on {_arch(column)}: {level.words}"
            link = _link({"op": op, **_of(column)}, name, level.letter, f"level {level.name}")
            yield f'<td role="gridcell"{first}>{link}</td>'


def _link(choice: dict[str, str], name: str, shown: str, kind: str = "") -> str:
    """A link to the rows that a choice leaves; the script has one of all stand in the order of tabs."""
    chosen = f' class="{kind}"' if kind else ""
    label = f' aria-label="{escape(name)}"'
    return f'<a href="#{escape(urlencode(choice))}" tabindex="-1"{chosen}{label}>{escape(shown)}</a>'


def _of(column: Column) -> dict[str, str]:
    return {"vendor": column.vendor} | ({"arch": column.arch} if column.arch else {})


def _arch(column: Column) -> str:
    return f"{column.vendor} {column.arch}".rstrip()


def _first(column: Column, levels: Levels) -> str:
    """The mark of a vendor's first column, which a line stands before."""
    before = levels.columns[: levels.columns.index(column)]
    return "" if any(other.vendor == column.vendor for other in before) else ' class="first"'
