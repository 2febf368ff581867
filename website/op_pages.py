"""The op reference: a page for each contract, with the kernels that serve it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from portakernel.contract import Choice, Contract, Result, TensorArgument, alternatives
from portakernel.contract.case import Case
from portakernel.contract.shape_binding import shown_requirement
from portakernel.contract.signature_text import signature, when_it_exists
from portakernel.contracts import own_contracts
from portakernel.matrix.proofs import KINDS, Proof
from portakernel.matrix.table import OpSupport, table

INDEX = "ops/index.md"


def op_pages(
    matrix: Sequence[OpSupport], proofs: Sequence[Proof], page_of_matrix: str, notes: Mapping[str, str]
) -> dict[str, str]:
    """The pages by their paths, the list of all ops first; ``notes`` are what else is known of an op's kernels."""
    rows = [(f"[`{contract.op}`]({contract.op}.md)", contract.summary) for contract in own_contracts().values()]
    pages = {INDEX: "\n\n".join(["# Ops", _INTRODUCTION, table(("op", "what it computes"), rows)]) + "\n"}
    for support in matrix:
        link = f"../{page_of_matrix}#op={support.op}"
        contract, note = own_contracts()[support.op], notes.get(support.op, "")
        pages[f"ops/{support.op}.md"] = _page(contract, support, proofs, link, note)
    return pages


_INTRODUCTION = """\
An op is a contract: what is computed, from what, how exactly. Every kernel of an op is held to it by the same cases.
Each page is made from the contract in `portakernel/contracts`; `portakernel.ops.<op>` is the function, and `help()` on
it says the same in short."""


def _page(contract: Contract, support: OpSupport, proofs: Sequence[Proof], link: str, note: str) -> str:
    blocks = [
        f"# {contract.op}",
        contract.summary,
        f"```python\nportakernel.ops.{signature(contract)}\n```",
        f"```text\n{contract.formula}\n```",
        _escaped(contract.notes),
        "## Arguments",
        table(("tensor", "shape", "dtypes", ""), [_tensor(contract, tensor) for tensor in contract.tensors]),
        _parameters(contract),
        _requirements(contract),
        "## Results",
        table(("result", "shape", "dtype", "when"), [_result(contract, result) for result in contract.outputs]),
        _inplace(contract),
        "## Gradient",
        *_gradient(contract),
        "## Tolerance",
        *_tolerance(contract),
        "## Source",
        f"{_escaped(contract.source)}.",
        "## Kernels",
        f"By priority, the reference last. [The matrix]({link}) has them by architecture, dtype and scale format.",
        table(("kernel", "priority", "vendors", "gradient", "proven on"), list(_kernels(support, proofs))),
        f"[How far that goes](../conformance-figures.md), {note}." if note else "",
        "## Cases",
        f"Every kernel runs each of the {len(contract.cases)} cases that it claims, in every dtype that it claims.",
        table(("case", "sizes", "more"), [_case(contract, case) for case in contract.cases]),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _tensor(contract: Contract, tensor: TensorArgument) -> tuple[str, str, str, str]:
    names = dict.fromkeys(dtype for group in alternatives(tensor.dtypes) for dtype in group)
    dtypes = ", ".join(f"that of `{name}`" if name in contract.names else name for name in names)
    kind = "a feature: kernels must list it" if tensor.feature else "or None" if tensor.optional else ""
    keyword = "by keyword" if tensor.keyword else ""
    return f"`{tensor.name}`", _shape(contract, tensor), dtypes, "; ".join(filter(None, (kind, keyword)))


def _shape(contract: Contract, tensor: TensorArgument) -> str:
    """The shape; where it depends on an argument's value, each shape with the values that it is for."""
    if not isinstance(tensor.shape, Choice):
        return f"`{tensor.described}`"
    values: dict[str, list[str]] = {}
    for value, shape in tensor.shape.of.items():
        values.setdefault(replace(tensor, shape=shape).described, []).append(str(value))
    return "; ".join(f"`{shape}` for {', '.join(several)}" for shape, several in values.items())


def _parameters(contract: Contract) -> str:
    rows = [
        (
            f"`{parameter.name}`",
            "" if parameter.is_required else f"`{parameter.default!r}`",
            parameter.accepted(),
            "a feature, neutral at its default" if parameter.feature else "a value: every kernel honours it",
            parameter.summary,
        )
        for parameter in contract.parameters
    ]
    return table(("keyword", "default", "accepted", "kind", "meaning"), rows) if rows else ""


def _requirements(contract: Contract) -> str:
    return (
        f"Sizes must fit: {', '.join(f'`{shown_requirement(text)}`' for text in contract.requirements)}."
        if contract.requirements
        else ""
    )


def _result(contract: Contract, result: Result) -> tuple[str, str, str, str]:
    dtypes = alternatives(result.dtype) if result.dtype is not None else [result.like]
    known = {*contract.names, *(parameter.name for parameter in contract.parameters)}
    dtype = " or ".join(f"that of `{name}`" if name in known else str(name) for name in dict.fromkeys(dtypes))
    when = when_it_exists(result, "`")
    return f"`{result.name}`", _shape(contract, TensorArgument(result.name, result.shape, ())), dtype, when


def _inplace(contract: Contract) -> str:
    names = " or ".join(f"`{name}`" for name in contract.inplace)
    return f"`out` may be {names} itself." if names else "`out` may be no input itself."


def _gradient(contract: Contract) -> Iterator[str]:
    match contract.gradient:
        case "none":
            yield "None."
        case "identity":
            yield "Each argument's is the result's: no kernel runs."
        case _:
            kept = ", ".join(f"`{name}`" for name in contract.backward_inputs)
            yield f"A kernel of its own, chosen for itself. It is given {kept}, and what forward saves:"
            if contract.saved:
                rows = [_result(contract, result) for result in contract.saved]
                yield table(("saved", "shape", "dtype", "when"), rows)
            else:
                yield "Nothing."


def _tolerance(contract: Contract) -> Iterator[str]:
    rule = contract.tolerance
    if rule.rule == "plain":
        yield (
            "Per row at most twice the error (in float32, eight times) of the plain formula computed in the inputs' own"
            " dtype, against float64."
        )
    parts = {"results": rule.forward, "saved tensors": rule.saved, "gradients": rule.backward}
    rows = [(part, name, f"{ulp:g}") for part, limits in parts.items() for name, ulp in limits.items()]
    if rows:
        yield "At most so many units in the last place from the reference in float64:"
        yield table(("of", "dtype", "ulp"), rows)


def _kernels(support: OpSupport, proofs: Sequence[Proof]) -> Iterator[tuple[str, ...]]:
    for kernel in support.kernels:
        numbers = dict.fromkeys(rule.number for rule in kernel.priority.rules)
        vendors = dict.fromkeys(place.vendor for place in support.places if kernel.name in place.servings)
        gradient = "kernel" if kernel.backward is not None else ""
        priority = " or ".join(map(str, numbers))
        yield f"`{kernel.name}`", priority, ", ".join(vendors), gradient, _proven(kernel.name, proofs)


def _proven(kernel: str, proofs: Iterable[Proof]) -> str:
    """How many targets of each kind; those that ran by name."""
    targets: Mapping[str, dict[str, None]] = {kind: {} for kind in KINDS}
    for proof in proofs:
        if proof.kernel == kernel:
            measured = " (benchmark)" if proof.by == "bench" else ""
            targets[proof.kind][proof.target + measured] = None
    parts = [f"ran: {', '.join(targets['ran'])}"] if targets["ran"] else []
    parts += [f"emulated: {', '.join(targets['emulated'])}"] if targets["emulated"] else []
    parts += [f"compiled: {len(targets['compiled'])} architectures"] if targets["compiled"] else []
    parts += [f"native instruction: {len(targets['native'])}"] if targets["native"] else []
    return "; ".join(parts) or "claimed only"


def _case(contract: Contract, case: Case) -> tuple[str, str, str]:
    leading = [f"leading {'×'.join(map(str, case.leading))}"] if case.leading else []
    sizes = [*leading, *(f"{name}={size}" for name, size in case.dims.items())]
    more = [f"`{name}` {layout}" for name, layout in case.layouts.items()]
    more += [f"`{name}={value!r}`" for name, value in case.parameters.items()]
    more += [f"with `{name}`" for name in case.present]
    more += [f"{case.values} numbers"] if case.values != "normal" else []
    more += ["without a gradient"] if contract.gradient == "kernel" and not case.backward else []
    return _escaped(case.name), ", ".join(sizes), ", ".join(more)


def _escaped(text: str) -> str:
    """``text`` without what Markdown would take for emphasis or a link."""
    for mark in "\\*_[]<":
        text = text.replace(mark, f"\\{mark}")
    return text
