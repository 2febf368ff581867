"""What to do about a reason for which a kernel does not serve."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from portakernel.capability import ReasonCode, Rejection
from portakernel.kernel import Kernel

_PREFER = "prefer it: `--prefer {kernel}`, or portakernel.policy(prefer={kernel!r})"
_TRACEBACK = "mend what it names; `portakernel doctor --verbose` shows the traceback"
_REQUIRE = "do without require={parameter!r}"

# One sentence a code, for people; empty where nothing that a caller or an operator can do would make the kernel serve.
ADVICE: Mapping[ReasonCode, str] = {
    ReasonCode.NOT_INSTALLED: "{install}",
    ReasonCode.IMPORT_FAILED: _TRACEBACK,
    ReasonCode.PROBE_FAILED: _TRACEBACK,
    ReasonCode.API_VERSION: "install versions of {distribution} and portakernel that go together",
    ReasonCode.DISABLED: "take it out of PORTAKERNEL_DISABLE",
    ReasonCode.NEEDS_BUILD: 'build it ahead, with portakernel.warmup("{op}", ...)',
    ReasonCode.DENIED_BY_POLICY: "take back the wish that stands against it ({text})",
    ReasonCode.NOT_IN_PLAN: "add it to the plan, or ask without one",
    ReasonCode.VENDOR: "",
    ReasonCode.ARCH: "",
    ReasonCode.DRIVER: "update the driver",
    ReasonCode.MISSING_LIBRARY: "install the library that it names",
    ReasonCode.MISSING_TOOLCHAIN: "install the tool that it names",
    ReasonCode.DTYPE: "give {parameter} in a dtype that it takes",
    ReasonCode.SCALE_FORMAT: "quantise {parameter} in a scale format that it takes",
    ReasonCode.LAYOUT: "pass {argument}.contiguous()",
    ReasonCode.ALIGNMENT: "pass {argument} at an aligned address, as a fresh tensor or {argument}.clone() is",
    ReasonCode.LIMIT: "bring {parameter} within its bound, by splitting or padding the call",
    ReasonCode.FEATURE: "do without {parameter}",
    ReasonCode.REQUIRES_GRAD: "call it under torch.no_grad() where no gradient is needed",
    ReasonCode.NO_BACKWARD: "",
    ReasonCode.BACKWARD_MISMATCH: "run forward with {kernel} too: `--use {kernel}`",
    ReasonCode.NOT_DETERMINISTIC: _REQUIRE,
    ReasonCode.NOT_BATCH_INVARIANT: _REQUIRE,
    ReasonCode.NOT_CAPTURABLE: _REQUIRE,
    ReasonCode.WORKSPACE: "free device memory, or split the call",
    ReasonCode.SHARED_MEMORY: "ask for smaller sizes; this device's shared memory is less than it needs",
    ReasonCode.CANNOT_RUN: "change what its reason names",
    ReasonCode.ATTACHED_TARGET: _PREFER,
    ReasonCode.LOWER_PRIORITY: _PREFER,
    ReasonCode.SLOWER_MEASURED: _PREFER,
}


def advice(kernel: Kernel, rejection: Rejection) -> str:
    """What would take ``rejection`` away; empty where nothing can."""
    if rejection.code is ReasonCode.DISABLED and kernel.disabled is not None:
        return ""
    if rejection.parameter == "inplace":
        return "write into a tensor of its own, not over an input"
    if rejection.parameter == "reference":
        return "allow the reference: policy(reference='allow'), or PORTAKERNEL_REFERENCE=allow"
    parameter = rejection.parameter or "the argument"
    return ADVICE[rejection.code].format(
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
