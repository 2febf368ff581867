"""The support matrix as one HTML page that filters: rows in a table, its style and its script inside, nothing to load.

It opens with a picture of ops by architectures, whose cells are links to what the filter leaves of the rows below.
Without scripts the page is the whole table; ``page.js`` hides the rows that a filter leaves out and keeps the filter in
the address. What a row says is said in ``rows``; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from portakernel.matrix.page.levels import levels_of_rows
from portakernel.matrix.page.picture import picture
from portakernel.matrix.page.rows import Row, rows
from portakernel.matrix.proofs import KINDS, Kind, Proof
from portakernel.matrix.table import Marks, OpSupport
from portakernel.words.dtypes import DTYPES, SCALE_FORMATS

_PROVEN: dict[Kind, str] = {
    "compiled": "compiled", "native": "native instruction", "emulated": "emulated", "ran": "ran",
}  # fmt: skip
_COLUMNS = ("kernel", "vendor", "architectures", "dtypes", "scale formats", "features", "gradient", "proven")


def page(
    matrix: Sequence[OpSupport], proofs: Iterable[Proof] = (), *, home: str = "", notes: Mapping[str, str] | None = None
) -> str:
    """The page; ``home`` is where it links back to, ``notes`` are what else is known of an op's kernels."""
    known = tuple(proofs)
    sections = [(support, rows(support, known)) for support in matrix]
    every = [row for _, found in sections for row in found]
    return Template(_file("page.html")).substitute(
        style="\n".join(map(_file, ("palette.css", "page.css", "picture.css"))),
        script="\n".join(map(_file, ("page.js", "picture.js"))),
        home=f'<p><a href="{escape(home)}">Documentation</a></p>' if home else "",
        picture=picture(levels_of_rows({support.op: found for support, found in sections}, matrix)),
        filters="\n".join(_filters(matrix, every)),
        count=_counted(every),
        head="".join(f'<th role="columnheader" scope="col">{column}</th>' for column in _COLUMNS),
        sections="\n".join(_section(support, found, (notes or {}).get(support.op, "")) for support, found in sections),
    )


def _file(name: str) -> str:
    return files("portakernel.matrix.page").joinpath(name).read_text(encoding="utf-8").rstrip("\n")


def _counted(found: Sequence[Row]) -> str:
    """What the script says, too, of the rows that it shows."""
    kernels = {row.kernel.name: row.kernel.op for row in found}
    return f"{len(found)} of {len(found)} rows; kernels: {len(kernels)}; ops: {len(set(kernels.values()))}"


# --- filters ---------------------------------------------------------------------------------------------------------


def _filters(matrix: Sequence[OpSupport], found: Sequence[Row]) -> list[str]:
    """A choice for each thing to filter by; architectures by vendor."""
    archs: dict[str, dict[str, None]] = {}
    for row in found:
        archs.setdefault(row.vendor, {}).update(dict.fromkeys(row.names))
    groups = "".join(_group(vendor, sorted(names, key=_natural)) for vendor, names in sorted(archs.items()) if names)
    claimed = {name for row in found for name in (*row.dtypes, *row.formats)}
    return [
        _choice("op", "Op", _options(support.op for support in matrix)),
        _choice("vendor", "Vendor", _options(sorted(archs))),
        _choice("arch", "Architecture", groups),
        _choice("dtype", "Dtype", _options(name for name in DTYPES if name in claimed)),
        _choice("format", "Scale format", _options(name for name in SCALE_FORMATS if name in claimed)),
        _choice("plugin", "Plugin", _options(sorted({row.kernel.plugin for row in found}))),
        _choice("proof", "Proven", "".join(f'<option value="{kind}">{_PROVEN[kind]}</option>' for kind in KINDS)),
    ]


def _group(vendor: str, names: Sequence[str]) -> str:
    label = escape(vendor)
    return f'<optgroup label="{label}" data-vendor="{label}">{_options(names)}</optgroup>'


def _natural(arch: str) -> tuple[int, str]:
    """Shorter names first, so that ``sm_90`` stands before ``sm_100``."""
    return len(arch), arch


def _choice(name: str, label: str, options: str) -> str:
    every = "any claim" if name == "proof" else "any"
    return (
        f'<p><label for="{name}">{label}</label>'
        f'<select id="{name}" name="{name}"><option value="">{every}</option>{options}</select></p>'
    )


def _options(names: Iterable[str]) -> str:
    return "".join(f"<option>{escape(name)}</option>" for name in names)


# --- rows ------------------------------------------------------------------------------------------------------------


def _section(support: OpSupport, found: Sequence[Row], note: str) -> str:
    head = f'<span class="op">{escape(support.op)}</span> {escape(support.summary)}'
    head += f'<span class="note">{escape(note)}</span>' if note else ""
    span = f'<tr role="row"><th role="rowheader" scope="rowgroup" colspan="{len(_COLUMNS)}">{head}</th></tr>'
    body = "\n".join([span, *map(_row, found)])
    return f'<tbody role="rowgroup" data-op="{escape(support.op)}">\n{body}\n</tbody>'


def _row(row: Row) -> str:
    kernel = row.kernel
    name = f"<code>{_breakable(kernel.name)}</code>"
    name += f'<span class="note">disabled: {escape(kernel.disabled)}</span>' if kernel.disabled else ""
    cells = (
        name,
        escape(row.vendor),
        "; ".join(_archs(family, names) for family, names in row.archs),
        _marked(row.dtypes, row.serving.dtypes),
        _marked(row.formats, row.serving.formats),
        ", ".join(map(_breakable, row.serving.features)),
        "kernel" if kernel.backward is not None else "",
        "".join(map(_proof, row.proofs)),
    )
    data = {
        "kernel": kernel.name,
        "plugin": kernel.plugin,
        "vendor": row.vendor,
        "arch": " ".join(row.names),
        "dtype": " ".join(row.dtypes),
        "format": " ".join(row.formats),
        # kind:dtypes:formats, since what ran in one dtype is not proven to run in another
        "proof": ";".join(f"{p.kind}:{' '.join(p.dtypes)}:{' '.join(p.formats)}" for p in row.proofs),
    }
    attributes = "".join(f' data-{key}="{escape(value)}"' for key, value in data.items())
    written = "".join(
        f'<td role="cell" data-label="{column}"{f">{cell}" if cell else _EMPTY[column]}</td>'
        for column, cell in zip(_COLUMNS, cells, strict=True)
    )
    return f'<tr role="row"{attributes}>{written}</tr>'


def _breakable(name: str) -> str:
    """A long name, with the places where a narrow column may break it."""
    return escape(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


# What an empty cell says; a phone's cards leave out those that say nothing.
_EMPTY = dict.fromkeys(_COLUMNS, ' class="empty">–') | {"proven": ">claimed only"}


def _archs(family: str | None, names: Sequence[str]) -> str:
    listed = ", ".join(map(escape, names)) or "any"
    return f"<b>{escape(family)}</b> {listed}" if family is not None else listed


def _marked(names: Sequence[str], marks: Marks | None) -> str:
    """The names, those that the hardware has no instructions for behind a word that says so."""
    if marks is None:
        return ", ".join(map(escape, names))
    by_mark = {"": marks.native, "emulated": marks.emulated, "absent": marks.absent}
    parts = [
        (f'<span class="{word}">{word}:</span> ' if word else "") + ", ".join(map(escape, several))
        for word, several in by_mark.items()
        if several
    ]
    return "; ".join(parts)


def _proof(proof: Proof) -> str:
    tried = ", ".join((*proof.dtypes, *proof.formats))
    sizes = " (benchmark)" if proof.by == "bench" else f" ({proof.requests} drawn)" if proof.requests else ""
    return (
        f'<details class="{proof.kind}"><summary><b>{_PROVEN[proof.kind]}{sizes}</b> {escape(tried)}</summary>'
        f"by {escape(proof.told)}</details>"
    )
