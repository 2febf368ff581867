"""Decisions for several ops or targets side by side: what they ask, their table, and the file that they are kept in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from portakernel.claims.request import Phase
from portakernel.cli.output import Cell, Page
from portakernel.contracts import contract
from portakernel.deciding.explaining import explain_in_words
from portakernel.errors import ArgumentTypeError
from portakernel.words.dtypes import parse_dtype

if TYPE_CHECKING:
    from portakernel.deciding.decision import Decision
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel.registry.registry import Registry
    from portakernel.words.target import Target

SCHEMA_VERSION = 1


def decide_sheet(
    now: Dispatcher,
    ops: Sequence[str] | None,
    targets: Sequence[str],
    *,
    device: str | None = None,
    dtype: str | None = None,
    phase: Phase = Phase.INFERENCE,
    compiled: bool = False,
) -> list[Decision]:
    """The decisions for each op (where none is given, all that have the phase) on each target; targets outside.

    Sizes are left open. Where every op is asked, each is in ``dtype`` if its arguments can have that, and else in its
    own default there.

    Raises:
        UnknownNameError, ArgumentValueError: a target, a device or the dtype does not exist.
        ArgumentTypeError: an op of ``ops``, or every op there is, has no argument that can have the dtype.
    """
    having = [
        op for op, made in sorted(now.registry.ops.items()) if phase is not Phase.BACKWARD or made.gradient == "kernel"
    ]
    found: list[Decision] = []
    for target in targets or (None,):
        for op in ops or having:
            words: dict[str, Any] = {"target": target, "device": device, "phase": phase, "compiled": compiled}
            try:
                decision = explain_in_words(now, op, dtype=dtype, **words)
            except ArgumentTypeError:  # the op's arguments cannot have that dtype
                if ops is not None:
                    raise
                decision = explain_in_words(now, op, **words)
            if not any(name in decision.request.dtypes for name in contract(op).names):
                own = default_dtypes(op, decision.request.target, now.registry)
                decision = explain_in_words(now, op, dtype=own, **words)
            found.append(decision)
    if dtype is not None and not any(has_dtype(decision, dtype) for decision in found):
        taken = sorted({name for op in ops or having for name in _dtypes_of(op)})
        raise ArgumentTypeError(
            f"no op is asked in {dtype}: their arguments can be {', '.join(taken)}; give one of these"
        )
    return list({(decision.request.target, decision.request.op): decision for decision in found}.values())


def has_dtype(decision: Decision, dtype: str) -> bool:
    """Whether an argument of the request has ``dtype``."""
    names = contract(decision.request.op).names
    return any(found == parse_dtype(dtype).name for name, found in decision.request.dtypes.items() if name in names)


def _dtypes_of(op: str) -> set[str]:
    made = contract(op).at()
    return {dtype for tensor in made.tensors if not tensor.optional for dtype in made.possible_dtypes(tensor.name)}


def default_dtypes(op: str, target: Target, registry: Registry) -> dict[str, str]:
    """What an op's arguments are asked in: bfloat16 (float32 on a CPU) where they can be that; else natively there."""
    backend = next((one for one in registry.backends.values() if one.vendor == target.vendor), None)
    facts = backend.archs.get(target.arch) if backend is not None else None
    native = facts.dtypes.native if facts is not None else []
    wanted = "float32" if backend is not None and backend.torch_device == "cpu" else "bfloat16"
    made = contract(op).at()
    found: dict[str, str] = {}
    for tensor in made.tensors:
        accepted = made.accepted_dtypes(tensor.name, found)
        if not tensor.optional:
            found[tensor.name] = min(accepted, key=lambda name: (name != wanted, name not in native))
    return found


def sheet_json(decisions: Sequence[Decision]) -> dict[str, Any]:
    """The decisions as JSON-ready data; stable."""
    from portakernel import __version__

    return {
        "schema_version": SCHEMA_VERSION,
        "portakernel": __version__,
        "targets": list(dict.fromkeys(str(decision.request.target) for decision in decisions)),
        "decisions": [decision.to_json() for decision in decisions],
    }


def print_sheet(out: Page, decisions: Sequence[Decision], registry: Registry, dtype: str | None = None) -> None:
    """Prints a table for each target: each op's kernel, and whose would serve without it; ``dtype`` was asked for."""
    for target in dict.fromkeys(decision.request.target for decision in decisions):
        here = [decision for decision in decisions if decision.request.target == target]
        backend = next((one for one in registry.backends.values() if one.vendor == target.vendor), None)
        facts = backend.archs.get(target.arch) if backend is not None else None
        out.heading(f"{target}{f', {facts.name}' if facts is not None else ''}, for {here[0].request.phase}")
        out.table([_row(decision) for decision in here], ("op", "dtypes", "kernel", "next"), indent=2)
        by_reference = sum(decision.chosen is not None and decision.chosen.is_reference for decision in here)
        unserved = sum(decision.chosen is None for decision in here)
        by_kernels = len(here) - by_reference - unserved
        counts = f"{by_kernels} by kernels, {by_reference} by the reference, {unserved} by none"
        out.line(f"{len(here)} op{'s' * (len(here) != 1)}: {counts}", indent=2)
        if dtype is not None and (others := [one.request.op for one in here if not has_dtype(one, dtype)]):
            text = f"Not in {dtype}, which their arguments cannot be, but in dtypes of their own: {', '.join(others)}"
            out.line(text, "doubt", indent=2)


def _row(decision: Decision) -> tuple[str | Cell, ...]:
    chosen = decision.chosen
    tensors = [dtype for name, dtype in decision.request.dtypes.items() if name in contract(decision.request.op).names]
    dtypes = ", ".join(dict.fromkeys(tensors))
    following = next((one.kernel.plugin for one in decision.candidates if one.status == "eligible"), "")
    if chosen is None:
        return decision.request.op, dtypes, Cell("none", "bad"), ""
    return decision.request.op, dtypes, Cell(chosen.name, "doubt" if chosen.is_reference else "good"), following
