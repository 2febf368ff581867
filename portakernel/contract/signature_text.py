"""An op's contract as people read it: its signature and the public function's docstring."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from portakernel.contract.contract import Contract, TensorArgument, alternatives
from portakernel.contract.parameter import Parameter
from portakernel.contract.parts import Result
from portakernel.words.dtypes import FLOAT64


def arguments(contract: Contract, *more: str) -> list[str]:
    """The public function's arguments as Python source, ``*`` included, then ``more``."""
    positional = [tensor for tensor in contract.tensors if not tensor.keyword]
    keyword = [tensor for tensor in contract.tensors if tensor.keyword]
    found = [f"{tensor.name}=None" if tensor.optional else tensor.name for tensor in positional]
    by_name = [p.name if p.is_required else f"{p.name}={p.default!r}" for p in contract.parameters]
    by_name += [f"{tensor.name}=None" if tensor.optional else tensor.name for tensor in keyword]
    by_name += more
    return [*found, "*", *by_name] if by_name else found


def outs(contract: Contract) -> list[str]:
    """``out=None`` where there are results to be written somewhere; an op that writes its arguments has none."""
    return ["out=None"] if contract.outputs else []


def signature(contract: Contract) -> str:
    """The op as people call it: ``rms_norm(x, weight, *, eps=1e-06, weight_offset=0.0, out=None, kernel=None)``."""
    return f"{contract.op}({', '.join(arguments(contract, *outs(contract), 'kernel=None'))})"


def document(contract: Contract) -> str:
    """The public function's docstring."""
    lines = [_tensor(contract, tensor) for tensor in contract.tensors]
    lines += [_parameter(parameter) for parameter in contract.parameters]
    written = "where to write" if len(contract.outputs) == 1 else "where to write, a tensor for each result"
    if contract.outputs:
        lines.append(f"out: {written}; may be {' or '.join(contract.inplace) or 'no input'} itself.")
    lines.append("kernel: a kernel or plugin to use strictly: that one, or an error.")
    errors = [
        "ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.",
        "NoKernelError: no kernel can serve the call; the message has every kernel's reason.",
    ]
    blocks = [
        contract.summary,
        _wrapped(f"``{contract.formula}``"),
        _wrapped(contract.notes),
        _section("Args", lines),
        _section("Returns", _results(contract)) if len(contract.outputs) > 1 else "",
        _section("Raises", errors),
        _wrapped(f"Source: {contract.source}."),
    ]
    return "\n\n".join(block for block in blocks if block)


def _wrapped(text: str, indent: str = "", hanging: str = "") -> str:
    return "\n".join(
        textwrap.wrap(text, 114, initial_indent=indent, subsequent_indent=indent + hanging, break_long_words=False)
    )


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:", *(_wrapped(line, "    ", "    ") for line in lines)])


def _tensor(contract: Contract, tensor: TensorArgument) -> str:
    names = dict.fromkeys(dtype for group in alternatives(tensor.dtypes) for dtype in group)
    dtypes = " or ".join(f"the dtype of {name}" if name in contract.names else name for name in names)
    if tensor.name == contract.in_float64:
        dtypes += f", or {FLOAT64}, which the reference alone serves"
    none = "; a feature, neutral at None" if tensor.feature else "; or None" if tensor.optional else ""
    written = "; written, so that it shares no memory with another argument" if tensor.mutated else ""
    return f"{tensor.name}: {tensor.described}, {dtypes}{none}{written}."


def _parameter(parameter: Parameter) -> str:
    kind = "a feature, neutral at" if parameter.feature else "a value; default"
    kind = "a value that has to be given" if parameter.is_required else f"{kind} {parameter.default!r}"
    is_listed = parameter.choices or parameter.optional or parameter.kind == "mask"
    accepted = f" Accepted: {parameter.accepted()}." if is_listed else ""
    summary = f" {parameter.summary.rstrip('.')}." if parameter.summary else ""
    return f"{parameter.name}: {kind}.{summary}{accepted}"


def when_it_exists(result: Result, quote: str = "") -> str:
    """For which values of a parameter there is a result; empty where there always is."""
    if result.when is None:
        return ""
    name, wanted = result.when
    text = f"at least {wanted.start}" if isinstance(wanted, range) else repr(wanted)
    return f"{quote}{name}{quote} is {text}"


def _results(contract: Contract) -> list[str]:
    found = []
    for result in contract.outputs:
        when = f", when {told}" if (told := when_it_exists(result)) else ""
        shape = TensorArgument(result.name, result.shape, ()).described
        found.append(f"{result.name}: {shape}{when}.")
    return found
