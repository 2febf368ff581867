"""Whether a contract of somebody else's can be one: every reason why not, before anything is made of it."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator

from portakernel.contract.contract import Contract, alternatives
from portakernel.contract.parts import Shape, TensorArgument
from portakernel.contract.sizes import VALUE, names_in, parse_size
from portakernel.contract.value_rules import BlockCounts, Blocks, Ends, Experts, Groups, Indices, Lengths, Pages, Slots
from portakernel.errors import nearest
from portakernel.words.dtypes import DTYPES

# What an op's call takes beside its own arguments, what generated code takes from Python (all else in it begins with an
# underscore), and what the op's parts are called in torch.
RESERVED = frozenset({"out", "kernel", "self", "needs", "save"})
RESERVED |= {"bool", "float", "inf", "int", "len", "list", "nan", "next", "str", "tuple", "type", "zip"}
_PARTS = ("_forward", "_backward")


def contract_faults(contract: Contract) -> Iterator[str]:
    """What is wrong with a contract; nothing where it is sound."""
    yield from op_name_faults(contract.op)
    names = [*contract.names, *(parameter.name for parameter in contract.parameters)]
    for name in names:
        if not _is_name(name) or name in RESERVED:
            reserved = ", ".join(sorted(RESERVED))
            yield f"argument {name!r} is no name for one; write a Python name, none of {reserved}"
        elif names.count(name) > 1:
            yield f"argument {name!r} is there twice; name each once"
    if not contract.tensors or contract.tensors[0].optional:
        yield "the first argument has to be a tensor that is always there: device and dtype follow from it"
    results = (*contract.outputs, *contract.saved)
    shapes = [(f"tensor {tensor.name}", tensor.shape) for tensor in contract.tensors]
    shapes += [(f"result {result.name}", result.shape) for result in results]
    unreadable = [text for what, shape in shapes for text in _sizes(what, alternatives(shape), contract)]
    yield from unreadable
    for place, tensor in enumerate(contract.tensors):
        known = [*DTYPES, *contract.names[:place]]
        for dtype in (dtype for group in alternatives(tensor.dtypes) for dtype in group):
            if dtype not in known:
                yield f"tensor {tensor.name}: unknown dtype {dtype!r}; {nearest(dtype, known)}"
        if not unreadable:
            yield from _rule(tensor, contract)
    for result in results:
        if result.like not in contract.names:
            yield f"result {result.name} is like {result.like!r}; {nearest(result.like, contract.names)}"
    yield from _unknown("kept", contract.backward_inputs, [*contract.names, *(result.name for result in results)])
    yield from _unknown("stands_for", contract.stands_for, contract.names)
    integers = [parameter.name for parameter in contract.parameters if parameter.kind == "int"]
    for condition in contract.requirements:
        yield from _unknown(f"requirement {condition!r}", VALUE.findall(condition), integers)
    yield from _unknown("inplace", contract.inplace, contract.names)
    yield from _unknown("host_reads", contract.host_reads, contract.names)
    if not contract.cases:
        yield "there are no cases; give some, because nothing that is claimed can be proven without"
    for case in contract.cases:
        where = f"case {case.name!r}"
        if not unreadable:
            yield from _unknown(where, case.dims, contract.dims)
        yield from _unknown(where, case.parameters, [parameter.name for parameter in contract.parameters])
        yield from _unknown(where, [*case.layouts, *case.present, *case.given], contract.names)
    for row in (*contract.grid.rows, contract.grid.launch) if contract.grid else ():
        yield from _unknown(f"grid row {row.name!r}", [*row.shapes, *row.given], contract.names)
        yield from _unknown(f"grid row {row.name!r}", row.values, [parameter.name for parameter in contract.parameters])


def op_name_faults(op: str) -> Iterator[str]:
    """Why an op cannot be called so: its name is a function's, in Python and in torch."""
    if keyword.iskeyword(op):
        yield f"op {op!r} is no name for an op: it is a word of Python; add another word to it, such as {op}_op"
    elif op.endswith(_PARTS):
        ends = " and ".join(_PARTS)
        yield f"op {op!r} is no name for an op: names that end in {ends} are those of its parts; choose another"
    elif not _is_name(op) or op != op.lower():
        yield f"op {op!r} is no name for an op; write lower-case letters, digits and underscores, such as my_op"


def _is_name(text: str) -> bool:
    return text.isidentifier() and text.isascii() and not keyword.iskeyword(text) and not text.startswith("_")


def _sizes(what: str, shapes: Iterable[Shape], contract: Contract) -> Iterator[str]:
    integers = [parameter.name for parameter in contract.parameters if parameter.kind == "int"]
    for text in (text for shape in shapes for text in shape):
        if (named := names_in(text)) is not None:
            unknown = [name for name in named if name not in integers]
            yield from (f"{what}: size {text!r} is no int parameter's value; {nearest(n, integers)}" for n in unknown)
            continue
        try:
            for part in text.lstrip("*").split("|"):
                parse_size(part)
        except ValueError as error:
            yield f"{what}: {error}"


def _rule(tensor: TensorArgument, contract: Contract) -> Iterator[str]:
    """What a rule about the numbers in a tensor names that there is not."""
    integers = [parameter.name for parameter in contract.parameters if parameter.kind == "int"]
    what, sizes = (
        f"tensor {tensor.name}, rule {type(tensor.rule).__name__}",
        [*contract.dims, *(f"${i}" for i in integers)],
    )
    match tensor.rule:
        case Indices(below, otherwise):
            yield from _unknown(what, [below], contract.dims)
            yield from _unknown(what, filter(None, [otherwise]), integers)
        case Ends(most):
            yield from _unknown(what, most.split("|"), contract.dims)
        case Lengths(size) | Slots(size) | Experts(size, _):
            yield from _unknown(what, size.split("*"), sizes)
        case Pages(below, lengths, page):
            yield from _unknown(what, [*below.split("*"), *page.split("*")], sizes)
            counted = [other.name for other in contract.tensors if isinstance(other.rule, Lengths)]
            if lengths not in counted:
                yield f"{what}: {lengths!r} is no argument with a rule Lengths; {nearest(lengths, counted)}"
        case BlockCounts(room):
            yield from _blocks(what, room, contract)
        case Blocks(counts, below):
            yield from _blocks(what, below, contract)
            listed = [other.name for other in contract.tensors if isinstance(other.rule, BlockCounts)]
            if counts not in listed:
                yield f"{what}: {counts!r} is no argument with a rule BlockCounts; {nearest(counts, listed)}"
        case Groups(scales, across, layout):
            yield from _unknown(what, [scales], contract.names)
            yield from _unknown(what, [across], contract.dims)
            yield from _unknown(what, [layout], [parameter.name for parameter in contract.parameters])
        case None:
            pass


def _blocks(what: str, text: str, contract: Contract) -> Iterator[str]:
    """What a dimension, or the number of its blocks, names that there is not."""
    dimension, _, parameter = text.partition("/")
    yield from _unknown(what, [dimension], contract.dims)
    yield from _unknown(what, filter(None, [parameter]), [parameter.name for parameter in contract.parameters])


def _unknown(what: str, given: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    listed = list(known)
    yield from (f"{what}: unknown {name!r}; {nearest(name, listed)}" for name in given if name not in listed)
