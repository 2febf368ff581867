"""What to do about a reason for which a kernel does not serve."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from portakernel.claims.advice import REASONS
from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.contracts import contract
from portakernel.registry.kernel import Kernel


def advice(kernel: Kernel, rejection: Rejection) -> str:
    """What would take ``rejection`` away; empty where nothing can."""
    if rejection.code is ReasonCode.DISABLED and kernel.disabled is not None:
        return ""
    if rejection.parameter == "inplace":
        return "write into a tensor of its own, not over an input"
    if rejection.parameter == "reference":
        return "allow the reference: policy(reference='allow'), or PORTAKERNEL_REFERENCE=allow"
    if rejection.code is ReasonCode.NEEDS_BUILD and (told := rejection.text.rpartition("; ")[2]) != rejection.text:
        return told
    if rejection.code is ReasonCode.FEATURE:
        if accepted := _accepted(kernel, rejection):
            return f"ask for {rejection.parameter}={' or '.join(accepted)}, or another kernel"
        if f"does not serve {rejection.parameter}=" not in rejection.text:
            return "ask as its reason says, or use another kernel"
    if rejection.code is ReasonCode.LIMIT and rejection.parameter in _rows(kernel.op) and _is_above(rejection.text):
        return f"split the call along {rejection.parameter}, or {REASONS[ReasonCode.LIMIT].remedy}"
    parameter = rejection.parameter or "the argument"
    return REASONS[rejection.code].remedy.format(
        op=kernel.op,
        kernel=kernel.name,
        distribution=kernel.package.distribution if kernel.package is not None else "portakernel",
        text=rejection.text,
        parameter=parameter,
        argument=parameter.partition(".")[0],
        install=install_command(kernel, parameter),
    )


def of_nearest_variant(kernel: Kernel, rejections: Sequence[Rejection]) -> list[Rejection]:
    """Those of ``rejections`` that speak of no variant, or of the first with the fewest: one has to serve, not all."""
    by_variant = {
        name: [r for r in rejections if r.text.startswith(f"{name}: ")] for name, _ in kernel.variants if name
    }
    spoken_of = [found for found in by_variant.values() if found]
    nearest = min(spoken_of, key=len, default=[])
    return [r for r in rejections if r in nearest or not any(r in found for found in spoken_of)]


def _accepted(kernel: Kernel, rejection: Rejection) -> list[str]:
    """The values that the refusing variant takes, where it takes but some: leaving the argument out is one of all."""
    for name, capability in kernel.variants:
        values = capability.values.get(rejection.parameter or "", ())
        if values and (not name or rejection.text.startswith(f"{name}: ")):
            return [value if isinstance(value, str) else str(value).lower() for value in values]
    return []


def _rows(op: str) -> set[str]:
    """The dimensions along which a call of ``op`` may be split, since each part gives its part of every result.

    They come first in all outputs, and in all tensors that have them. None is certain where an output's shape is chosen
    by a value, as that of scales is, which may be one for all rows; or where rows' places count when nothing is said of
    them (``positions``).
    """
    described = contract(op)
    shapes = [result.shape for result in described.outputs]
    if not all(isinstance(shape, tuple) and shape for shape in shapes):
        return set()
    first = {str(shape[0]).lstrip("*") for shape in shapes if isinstance(shape, tuple)}
    every = [*(tensor.shape for tensor in described.tensors), *shapes]
    behind = [size for shape in every if isinstance(shape, tuple) for size in shape[1:]]
    inner = {word for size in behind for word in re.findall(r"[A-Z]+", size)}
    optional = [tensor.shape for tensor in described.tensors if tensor.optional]
    implied = {str(shape[0]).lstrip("*") for shape in optional if isinstance(shape, tuple) and len(shape) == 1}
    return first - inner - implied if len(first) == 1 else set()


def _is_above(text: str) -> bool:
    """Whether a limit's text tells of a size above a maximum, not of one below a minimum or between multiples."""
    bound = re.search(r"<= (\d+).*; this is (\d+)", text)
    return bound is not None and int(bound[2]) > int(bound[1])


def install_command(kernel: Kernel, module: str) -> str:
    """How to install what provides ``module``, as ``kernel`` needs it."""
    return pip_command(kernel.distributions.get(module, module), kernel.requires.get(module, ""))


def pip_command(distribution: str, specifier: str = "") -> str:
    """How to install a distribution in a version that ``specifier`` admits."""
    command = f"pip install {shlex.quote(distribution + specifier.replace(' ', ''))}"
    return f"{command}, in the build for your accelerator (see pytorch.org)" if distribution == "torch" else command
