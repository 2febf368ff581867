"""What to do about a reason for which a kernel does not serve."""

from __future__ import annotations

import shlex

from portakernel.capability import ReasonCode, Rejection
from portakernel.kernel import Kernel
from portakernel.reasons import REASONS


def advice(kernel: Kernel, rejection: Rejection) -> str:
    """What would take ``rejection`` away; empty where nothing can."""
    if rejection.code is ReasonCode.DISABLED and kernel.disabled is not None:
        return ""
    if rejection.parameter == "inplace":
        return "write into a tensor of its own, not over an input"
    if rejection.parameter == "reference":
        return "allow the reference: policy(reference='allow'), or PORTAKERNEL_REFERENCE=allow"
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


def install_command(kernel: Kernel, module: str) -> str:
    """How to install what provides ``module``, as ``kernel`` needs it."""
    return pip_command(kernel.distributions.get(module, module), kernel.requires.get(module, ""))


def pip_command(distribution: str, specifier: str = "") -> str:
    """How to install a distribution in a version that ``specifier`` admits."""
    command = f"pip install {shlex.quote(distribution + specifier.replace(' ', ''))}"
    return f"{command}, in the build for your accelerator (see pytorch.org)" if distribution == "torch" else command
