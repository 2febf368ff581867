"""The repository's own texts as pages: which stands where, and where links between them lead on the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

# Section of the navigation, file (or pattern) in the repository, page on the site; `*` stands for the file's name, or
# the folder's where the file is a README. Links to a folder lead to its README.
_TEXTS = (
    ("Guide", "README.md", "index.md"),
    ("Guide", "docs/policy.md", "policy.md"),
    ("Guide", "docs/plans.md", "plans.md"),
    ("Guide", "docs/compile.md", "compile.md"),
    ("Guide", "docs/warmup.md", "warmup.md"),
    ("Guide", "docs/tuning.md", "tuning.md"),
    ("Guide", "docs/report.md", "report.md"),
    ("Guide", "docs/metrics.md", "metrics.md"),
    ("Guide", "docs/shadow.md", "shadow.md"),
    ("Guide", "docs/serving.md", "serving.md"),
    ("Guide", "docs/int4.md", "int4.md"),
    ("Guide", "docs/experts.md", "experts.md"),
    ("Guide", "docs/modes.md", "modes.md"),
    ("Guide", "docs/sharding.md", "sharding.md"),
    ("Guide", "docs/nn.md", "nn.md"),
    ("Guide", "docs/arrays.md", "arrays.md"),
    ("Guide", "docs/clients.md", "clients.md"),
    ("Guide", "docs/transformers.md", "transformers.md"),
    ("Guide", "examples/attention_in_transformers/README.md", "attention_in_transformers.md"),
    ("Guide", "examples/experts_in_transformers/README.md", "experts_in_transformers.md"),
    ("Guide", "examples/paged_generate/README.md", "paged_generate.md"),
    ("Guide", "docs/security.md", "security.md"),
    ("Examples", "examples/[0-9][0-9]_*.py", "examples/*.md"),
    ("Authors", "plugins/README.md", "plugins.md"),
    ("Authors", "backends/README.md", "backends.md"),
    ("Authors", "docs/writing-a-kernel.md", "writing-a-kernel.md"),
    ("Authors", "docs/native.md", "native.md"),
    ("Authors", "docs/emulation.md", "emulation.md"),
    ("Authors", "kit/portakernel_kit/conformance/README.md", "conformance.md"),
    ("Authors", "docs/conformance.md", "conformance-figures.md"),
    ("Authors", "docs/tolerances.md", "tolerances.md"),
    ("Authors", "examples/opencl_backend/README.md", "opencl_backend.md"),
    ("Plugins", "plugins/portakernel_plugins/*/README.md", "plugins/*.md"),
    ("Reference", "docs/cli.md", "cli.md"),
    ("Reference", "docs/matrix.md", "matrix-text.md"),
    ("Benchmarks", "benchmarks/README.md", "benchmarks/index.md"),
    ("Benchmarks", "benchmarks/results/*.md", "benchmarks/*.md"),
    ("Project", "docs/architecture.md", "architecture.md"),
    ("Project", "CONTRIBUTING.md", "contributing.md"),
    ("Project", "CHANGELOG.md", "changelog.md"),
)
# What texts link to and is no page. Any other link is left as it is, and MkDocs stops at it.
_NAMED = frozenset(
    {
        "LICENSE",
        "backends/portakernel_backends",
        "benchmarks/results",
        "benchmarks/results/plots",
        "plugins/portakernel_plugins",
    }
)
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<link>[^()\s]+)\)")


class Text(NamedTuple):
    """A page that says what a file of the repository says."""

    section: str
    page: str
    content: str


def texts() -> tuple[Text, ...]:
    """Every page made of a text, in order."""
    pages = {source: page for _, source, page in _found()}
    return tuple(
        Text(section, page, linked(_page_of(ROOT / source), source, pages)) for section, source, page in _found()
    )


def _page_of(path: Path) -> str:
    """A text as it is; a script as code under its name."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    number, _, name = path.stem.partition("_")
    return f"# {number} {name.replace('_', ' ')}\n\n```python\n{text}```\n"


def _found() -> Iterator[tuple[str, str, str]]:
    for section, pattern, page in _TEXTS:
        for path in sorted(ROOT.glob(pattern)):
            name = path.parent.name if path.name == "README.md" else path.stem
            yield section, path.relative_to(ROOT).as_posix(), page.replace("*", name)


def linked(text: str, source: str, pages: Mapping[str, str]) -> str:
    """``text`` of the file ``source``, its links to other files made to lead to their pages.

    What is no page (a folder, the licence) is named, not linked: the site stands alone.
    """

    def lead(found: re.Match[str]) -> str:
        file, mark, anchor = found["link"].partition("#")
        if "://" in file or not file:
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        page = pages.get(target) or pages.get(f"{target}/README.md")
        if page is None:
            return found["text"] if target in _NAMED else found[0]
        return f"[{found['text']}]({posixpath.relpath(page, posixpath.dirname(pages[source]) or '.')}{mark}{anchor})"

    parts = _FENCED.split(text)
    return "".join(part if i % 2 else _LINK.sub(lead, part) for i, part in enumerate(parts))
