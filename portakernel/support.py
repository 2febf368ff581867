"""What a target's hardware has no instructions for, of what a request asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from portakernel.dtypes import DTYPES
from portakernel.manifest import ArchFacts, NativeEmulated
from portakernel.registry import Registry
from portakernel.request import Request


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A dtype or scale format that the target does not compute in natively."""

    name: str
    kind: Literal["dtype", "format"]
    state: Literal["emulated", "absent"]
    text: str

    def to_json(self) -> dict[str, Any]:
        """The shortfall as JSON-ready data; stable."""
        return {"name": self.name, "kind": self.kind, "state": self.state, "text": self.text}


def shortfalls(request: Request, registry: Registry) -> tuple[Shortfall, ...]:
    """What the request asks for and its target's arch does not have natively; empty for archs without facts."""
    backend = next((b for b in registry.backends.values() if b.vendor == request.target.vendor), None)
    facts: ArchFacts | None = backend.archs.get(request.target.arch) if backend is not None else None
    if facts is None:
        return ()
    if not facts.dtypes.native:
        return ()  # nothing is known of it
    # an index or a mask is no arithmetic
    dtypes = dict.fromkeys(dtype for dtype in request.dtypes.values() if DTYPES[dtype].kind == "float")
    formats = dict.fromkeys(request.formats.values())
    found = [*_missing("dtype", dtypes, facts.dtypes, request), *_missing("format", formats, facts.formats, request)]
    return tuple(found)


def _missing(
    kind: Literal["dtype", "format"], asked: Mapping[str, None], known: NativeEmulated, request: Request
) -> Iterator[Shortfall]:
    what = "scale format " if kind == "format" else ""
    for name in asked:
        if name in known.native:
            continue
        instead = _alike(kind, name, known)
        native = f"; native there: {', '.join(instead)}" if instead else ""
        if name in known.emulated:
            text = f"{what}{name} is emulated on {request.target}, by conversion to a wider type"
            yield Shortfall(name, kind, "emulated", f"{text}{native}")
        else:
            text = f"{what}{name} is neither native nor emulated on {request.target}"
            yield Shortfall(name, kind, "absent", f"{text}: it is left to kernels that decode it themselves{native}")


def _alike(kind: str, name: str, known: NativeEmulated) -> list[str]:
    """What the arch does have natively, and that stands nearest: floats of the same width, other scale formats."""
    if kind == "format":
        return list(known.native)
    bits = DTYPES[name].bits
    return [other for other in known.native if DTYPES[other].kind == "float" and DTYPES[other].bits == bits]
