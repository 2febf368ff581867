"""What MkDocs calls while it builds the site: the pages, their order, and the matrix beside them."""

from __future__ import annotations

import functools
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from op_pages import op_pages
from portakernel_pages import faults
from portakernel_pages.generate import first_party
from reason_pages import reason_pages
from texts import ROOT, texts

from portakernel.matrix.page import page
from portakernel.matrix.proofs import recorded
from portakernel.matrix.table import support_matrix

MATRIX = "matrix.html"
# What texts show, beside them on the site as in the repository.
PICTURES = {"matrix.svg": ROOT / "docs" / "matrix.svg"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages in order."""
    config.nav = _navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds every page; nothing of them is on disk."""
    for path, content in _pages().items():
        files.append(File.generated(config, path, content=content))
    for path, source in PICTURES.items():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


@functools.cache
def _pages() -> dict[str, str]:
    registry, proofs, notes = first_party(), recorded(), faults.by_op(faults.recorded())
    matrix = support_matrix(registry)
    return {
        **{text.page: text.content for text in texts()},
        **op_pages(matrix, proofs, MATRIX, notes),
        **reason_pages(registry),
        MATRIX: page(matrix, proofs, home="index.html", notes=notes),
    }


def _navigation() -> list[dict[str, Any]]:
    """The sections: texts in their order, then what is made from code."""
    sections: dict[str, list[Any]] = {}
    for text in texts():
        sections.setdefault(text.section, []).append(text.page)
    sections["Reference"].insert(0, {"Support matrix": MATRIX})
    for section, folder in {"Ops": "ops/", "Reasons": "reasons/"}.items():
        sections[section] = [path for path in _pages() if path.startswith(folder)]
    order = ("Guide", "Examples", "Authors", "Ops", "Reasons", "Reference", "Plugins", "Benchmarks", "Project")
    return [{section: sections[section]} for section in order]
