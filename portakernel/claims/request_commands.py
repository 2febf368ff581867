"""A request written out, so that it can be made again: the command that explains it, the call that warms it up."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from portakernel.claims.request import PLAIN_FACTS, Phase, Request
from portakernel.contract import Contract
from portakernel.contract.sizes import parse_size
from portakernel.contracts import contract

if TYPE_CHECKING:
    from portakernel.deciding.policies import Wishes


def explain_command(request: Request, wishes: Wishes | None = None) -> str:
    """The ``portakernel explain`` that asks for ``request`` again, under the same wishes; for a shell.

    It comes to the same decision, but for what only a process knows: a kernel that has declined such calls, and what
    was built. Sizes that a traced graph leaves open stay open.
    """
    described = contract(request.op)
    words = ["portakernel", "explain", request.op, *_place(request)]
    dtypes = _dtypes(described, request)
    named = [dtypes] if isinstance(dtypes, str) else [f"{name}={dtype}" for name, dtype in dtypes.items()]
    words += _options("--dtype", named)
    shapes = {name: shape for name, shape in _shapes(described, request).items() if shape}
    words += _options("--shape", (f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items()))
    changed = _changed(described, request)
    words += _options("--set", (f"{name}={_written(value)}" for name, value in changed.items()))
    unusual = {name: value for name, value in request.facts.items() if value != PLAIN_FACTS[name.partition(".")[2]]}
    words += _options("--fact", (f"{name}={_written(value)}" for name, value in unusual.items()))
    words += ["--phase", str(request.phase)] if request.phase is not Phase.INFERENCE else []
    words += ["--saved-by", request.saved_by] if request.saved_by is not None else []
    words += ["--compiled"] if request.compiled else []
    if wishes is not None:
        words += _options("--use", wishes.spelled(wishes.use))
        words += _options("--prefer", wishes.spelled(wishes.prefer))
        words += _options("--deny", wishes.deny)
        words += ["--reference", wishes.reference] if wishes.reference != "warn" else []
        words += ["--form", wishes.compiled] if wishes.compiled is not None else []
    words += _options("--require", sorted(request.requires))
    return shlex.join(words)


def warmup_call(request: Request) -> str:
    """The ``portakernel.warmup(...)`` that builds what ``request`` lacks, as Python source.

    It names the op and its shapes where these are all that the call takes; else it passes the op's tensors by name.
    """
    described = contract(request.op)
    made = described.at(request.values)
    present = [tensor for tensor in made.tensors if not tensor.optional or tensor.name in request.dtypes]
    used = {name for tensor in present for text in tensor.sizes if (name := parse_size(text.lstrip("*")).name)}
    changed = _changed(described, request)
    complete = all(type(request.dims.get(name)) is int for name in used)
    if not complete or not {tensor.name for tensor in present} <= request.dtypes.keys():
        return warmup_call_on(described, [tensor.name for tensor in present], request.values)
    dtypes = _dtypes(described, request)
    if "dtype" in changed:  # beside the tensors' dtypes the op's own has its place among them
        by_name = {name: request.dtypes[name] for name in described.names if name in request.dtypes}
        dtypes = {**by_name, "dtype": changed.pop("dtype")}
    words: dict[str, object] = {"dtype": dtypes, "shape": _shapes(described, request), **changed}
    if request.device is not None:
        words["device"] = request.device.torch_device
    if request.phase in (Phase.TRAINING, Phase.BACKWARD):
        words["training"] = True
    return f'portakernel.warmup("{request.op}", {", ".join(f"{name}={value!r}" for name, value in words.items())})'


def warmup_call_on(described: Contract, tensors: Collection[str], values: Mapping[str, Any]) -> str:
    """The ``portakernel.warmup(...)`` for a call with these tensors, called as the op calls them; as Python source."""
    given = [tensor for tensor in described.tensors if tensor.name in tensors]
    words = [f"{one.name}={one.name}" if one.keyword or one.optional else one.name for one in given]
    words += [
        f"{p.name}={values[p.name]!r}" for p in described.parameters if values.get(p.name, p.default) != p.default
    ]
    return f'portakernel.warmup("{described.op}", {", ".join(words)})'


def _place(request: Request) -> list[str]:
    """The device, where the request is for one of this machine, which is probed; else the target."""
    if request.device is not None and request.device.torch_device is not None:
        return ["--device", request.device.torch_device]
    return ["--target", str(request.target)]


def _options(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _dtypes(described: Contract, request: Request) -> Mapping[str, Any] | str:
    """The tensors' dtypes: one name where that says it, else by argument."""
    found = {name: request.dtypes[name] for name in described.names if name in request.dtypes}
    needed = {tensor.name for tensor in described.tensors if not tensor.optional}
    return next(iter(found.values())) if found.keys() == needed and len(set(found.values())) == 1 else found


def _shapes(described: Contract, request: Request) -> dict[str, tuple[int, ...]]:
    """Shapes of tensors that together show every known dimension; leading dimensions appear as their product."""
    found: dict[str, tuple[int, ...]] = {}
    given: set[str | None] = set()
    for tensor in described.at(request.values).tensors:
        sizes = [parse_size(text.lstrip("*")) for text in tensor.sizes]
        known = all(size.name is None or type(request.dims.get(size.name)) is int for size in sizes)
        if tensor.name in request.absent or not known:
            continue
        new = {size.name for size in sizes if size.solvable} - given
        if new or (tensor.optional and tensor.name not in request.dtypes):
            found[tensor.name] = tuple(size.of(request.dims[size.name] if size.name else 0) for size in sizes)
            given |= new
    return found


def _changed(described: Contract, request: Request) -> dict[str, Any]:
    """The op's own parameters that are not at their defaults."""
    values = request.values
    return {p.name: values[p.name] for p in described.parameters if values.get(p.name, p.default) != p.default}


def _written(value: object) -> str:
    """A value as ``--set`` takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
