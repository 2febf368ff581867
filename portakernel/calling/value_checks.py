"""What ``PORTAKERNEL_CHECKS=1`` looks at before each call: the numbers in tensors for which a contract has a rule.

The answer is read on the host, which waits for the device. A placement's kernel is wrapped where the placement is made,
so that every way to a kernel looks, and no generated source changes. Without the variable nothing is wrapped but, on
the CPU, kernels of four-bit weights, where PyTorch's operators refuse a column or group without saying whose it is:
what they were given is looked at once they have failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from torch import Tensor

from portakernel.calling.block_checks import check_blocks
from portakernel.calling.group_checks import check_groups
from portakernel.calling.launcher import signature
from portakernel.calling.serving_checks import check_most, check_serving
from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract
from portakernel.contract.value_rules import BlockCounts, Blocks, Ends, Experts, Groups, Indices, Lengths, Pages, Slots
from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.index_values import element, outside
from portakernel.tensors.layout import has_plain_memory


def checked(contract: Contract, request: Request, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, a launcher for the request's phase, which looks at the numbers that it is given first.

    A backward gets what forward has looked at. While a stream is captured nothing is looked at: nothing may be waited
    for.
    """
    if request.phase is Phase.BACKWARD or not contract.has_rules:
        return run
    names = signature(contract, request.phase)

    @wraps(run)
    def looked_at(*arguments: Any) -> Any:
        if not is_capturing():
            check_values(contract, dict(zip(names, arguments, strict=True)))
        return run(*arguments)

    return looked_at


def explains(contract: Contract, request: Request) -> bool:
    """Whether what a kernel was given is looked at after it has failed."""
    if request.phase is Phase.BACKWARD or request.target.vendor != "cpu":
        return False
    return any(isinstance(tensor.rule, Groups) for tensor in contract.tensors)


def explained(contract: Contract, request: Request, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, a launcher for such a request, whose failure is told by the numbers that it comes from, if it does."""
    names = signature(contract, request.phase)

    @wraps(run)
    def launch(*arguments: Any) -> Any:
        try:
            return run(*arguments)
        except (IndexError, RuntimeError):
            check_values(contract, dict(zip(names, arguments, strict=True)))
            raise

    return launch


def check_values(contract: Contract, arguments: dict[str, Any]) -> None:
    """Nothing, when the tensors' numbers are such as the op is defined for. Tensors without memory are passed over.

    Raises:
        IndexOutOfRangeError: an index, page, slot, expert or block points at nothing.
        ArgumentValueError: ends of pieces fall, or lie outside; a length has no room; a slot is written twice; a
            list of blocks is too long, or has one twice; a bound on lengths is too small.
    """
    readable = {name: given for name, given in arguments.items() if isinstance(given, Tensor) and _is_readable(given)}
    shapes = {tensor.name: tuple(arguments[tensor.name].shape) for tensor in _present(contract, arguments)}
    dims, _ = contract.at(arguments).bind_shapes(shapes)
    sizes = {**dims, **{f"${parameter.name}": arguments[parameter.name] for parameter in contract.parameters}}
    # lengths come before the pages that they reach
    for tensor in sorted(contract.tensors, key=lambda tensor: isinstance(tensor.rule, Pages)):
        numbers = readable.get(tensor.name)
        if numbers is None:
            continue
        match tensor.rule:
            case Indices(below, otherwise):
                also = (otherwise, arguments[otherwise]) if otherwise else None
                _check_indices(contract.op, tensor.name, numbers, below, dims[below], also)
            case Ends(most):
                name = next(part for part in most.split("|") if part in dims)
                _check_ends(contract.op, tensor.name, numbers, name, dims[name])
            case Lengths() | Pages() | Slots() | Experts() as rule:
                check_serving(contract.op, tensor.name, numbers, rule, sizes, readable)
            case BlockCounts() | Blocks() as rule:
                check_blocks(contract.op, tensor.name, numbers, rule, sizes, readable)
            case Groups() as rule:
                check_groups(contract.op, tensor.name, numbers, rule, sizes, readable)
            case None:
                pass
    for parameter in contract.parameters:
        ends, most = readable.get(parameter.bounds), arguments[parameter.name]
        if ends is not None and most is not None:
            counted = isinstance(contract.tensor(parameter.bounds).rule, Lengths)
            check = check_most if counted else _check_lengths
            check(contract.op, parameter.bounds, ends, parameter.name, most)


def _present(contract: Contract, arguments: dict[str, Any]) -> Iterator[Any]:
    return (tensor for tensor in contract.tensors if arguments[tensor.name] is not None)


def _is_readable(tensor: Tensor) -> bool:
    return has_plain_memory(tensor) and not tensor.is_meta


def _check_indices(
    op: str, name: str, numbers: Tensor, dimension: str, size: int, also: tuple[str, int] | None
) -> None:
    wrong = outside(numbers, size, also[1] if also else None)
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        accepted = f"in [0, {dimension}) with {dimension} = {size}" + (f", or {also[0]} = {also[1]}" if also else "")
        raise IndexOutOfRangeError(
            f"{op}: {element(name, place)} is {int(numbers[tuple(place)])}; it must be {accepted}"
        )


def _check_ends(op: str, name: str, numbers: Tensor, dimension: str, size: int) -> None:
    found = numbers.detach().long()
    falls, beyond = found[1:] < found[:-1], found > size
    if not bool((found[:1] != 0).any() | falls.any() | beyond.any()):
        return
    listed = found.tolist()
    if listed[0] != 0:
        raise ArgumentValueError(f"{op}: {element(name, [0])} is {listed[0]}; it must be 0")
    place = next(i for i, end in enumerate(listed) if end > size or (i and end < listed[i - 1]))
    accepted = f"at least {element(name, [place - 1])} = {listed[place - 1]}"
    if listed[place] > size:
        accepted = f"at most {dimension} = {size}"
    raise ArgumentValueError(f"{op}: {element(name, [place])} is {listed[place]}; it must be {accepted}")


def _check_lengths(op: str, name: str, ends: Tensor, parameter: str, most: int) -> None:
    lengths = ends.detach().long().diff()
    if bool((lengths > most).any()):
        place = int(lengths.argmax())
        text = f"but {element(name, [place])} to {element(name, [place + 1])} are {int(lengths[place])}"
        raise ArgumentValueError(f"{op}: {parameter} is {most}, {text}; it must be at least that, or None")
