"""Shortfalls: dtypes and formats that a request asks for and its target's hardware has no instructions for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from portakernel.claims.request import Request
from portakernel.contracts import contracts
from portakernel.manifest.models import ArchFacts, DTypeSupport, NativeEmulated
from portakernel.registry.registry import Registry
from portakernel.words.dtypes import DTYPES


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
    """All that the request asks for and its target's arch does not have natively; empty for archs without facts."""
    backend = next((b for b in registry.backends.values() if b.vendor == request.target.vendor), None)
    facts: ArchFacts | None = backend.archs.get(request.target.arch) if backend is not None else None
    if facts is None:
        return ()
    if not facts.dtypes.native:
        return ()  # nothing is known of it
    # an index or a mask is no arithmetic
    dtypes = dict.fromkeys(dtype for dtype in request.dtypes.values() if DTYPES[dtype].kind == "float")
    return (*_of_dtypes(dtypes, facts.dtypes, request), *_of_formats(facts, request))


def _of_dtypes(asked: Iterable[str], known: DTypeSupport, request: Request) -> Iterator[Shortfall]:
    features = request.device.features if request.device is not None else None
    for name in asked:
        options = known.optional.get(name, ())
        if name in known.native or not set(options).isdisjoint(features or ()):
            continue
        unless = f", unless the processor has {' or '.join(options)}" if options and features is None else ""
        yield _shortfall("dtype", name, known, request, unless)


def _of_formats(facts: ArchFacts, request: Request) -> Iterator[Shortfall]:
    """The scale formats that the arch does not apply itself; one goes as far as the dtypes of its elements do."""
    computed = {*facts.dtypes.native, *facts.dtypes.emulated}
    for name, dtypes in _elements(request).items():
        if name in facts.formats.native:
            continue
        undecoded = [dtype for dtype in dtypes if dtype not in computed]
        if name not in facts.formats.emulated or not undecoded:
            yield _shortfall("format", name, facts.formats, request)
        elif len(undecoded) == len(dtypes):
            yield _shortfall("format", name, facts.formats, request, of=f" of {' and '.join(dtypes)}")
        else:
            served = " and ".join(dtype for dtype in dtypes if dtype in computed)
            text = f"scale format {name} is emulated on {request.target} for {served}, by conversion to a wider type"
            text += f"; for {' and '.join(undecoded)} it is left to kernels that decode it themselves"
            yield Shortfall(name, "format", "emulated", text)


def _elements(request: Request) -> dict[str, dict[str, None]]:
    """The dtypes that the elements of each asked scale format have, or where that is open may have."""
    contract = contracts()[request.op].at(request.values)
    elements: dict[str, dict[str, None]] = {}
    for holder, name in request.formats.items():
        # of what the op writes a parameter says the dtype
        typed = [holder] if holder in contract.names else [p.name for p in contract.parameters if p.kind == "dtype"]
        for one in typed:
            dtypes = (request.dtypes[one],) if one in request.dtypes else contract.possible_dtypes(one)
            elements.setdefault(name, {}).update(dict.fromkeys(dtypes))
        elements.setdefault(name, {})
    return elements


def _shortfall(
    kind: Literal["dtype", "format"], name: str, known: NativeEmulated, request: Request, unless: str = "", of: str = ""
) -> Shortfall:
    """The shortfall of ``name``, which is emulated or absent; so is a format ``of`` elements that are."""
    what = f"{'scale format ' if kind == 'format' else ''}{name}{of}"
    instead = _alike(kind, name, known)
    native = f"; native there: {', '.join(instead)}" if instead else ""
    if name in known.emulated and not of:
        text = f"{what} is emulated on {request.target}, by conversion to a wider type{unless}"
        return Shortfall(name, kind, "emulated", f"{text}{native}")
    text = f"{what} is neither native nor emulated on {request.target}"
    return Shortfall(name, kind, "absent", f"{text}: it is left to kernels that decode it themselves{native}")


def _alike(kind: str, name: str, known: NativeEmulated) -> list[str]:
    """The nearest that the arch has natively: floats of the same width, other scale formats."""
    if kind == "format":
        return list(known.native)
    bits = DTYPES[name].bits
    return [other for other in known.native if DTYPES[other].kind == "float" and DTYPES[other].bits == bits]
