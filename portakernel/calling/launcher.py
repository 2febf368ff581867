"""A kernel's entry under the one signature that its phase has, on the device of its arguments.

Of ``rms_norm`` for inference, where there is one device::

    def launch(x, weight, eps, weight_offset, out):
        return kernel(x, weight, eps=eps, weight_offset=weight_offset, out=out)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from portakernel.calling.fast.generated import define
from portakernel.calling.fast.launch_source import CallSource, LaunchSource
from portakernel.calling.written_arguments import writing
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.torch_internals import device_switch


def launcher(contract: Contract, kernel: Kernel, request: Request, dispatcher: Dispatcher) -> Callable[..., Any]:
    """``kernel`` for the request's phase, taking all arguments by position, on its device whichever is current."""
    launch, names = launch_source(contract, kernel, request, dispatcher)
    source = f"def launch({', '.join(signature(contract, request.phase))}):\n    return {launch}\n"
    run: Callable[..., Any] = define(source, "launch", f"{kernel.name} {request.phase}", names)
    return run if can_be_captured(kernel, request, dispatcher) else _outside_captures(run)


def plain_launcher(contract: Contract, kernel: Kernel, phase: Phase, dispatcher: Dispatcher) -> Callable[..., Any]:
    """``kernel`` for the phase, taking a launcher's arguments by position: for tensors that are no memory."""
    given, call = ", ".join(signature(contract, phase)), call_source(contract, kernel, phase)
    source = f"def launch({given}):\n    return {call}\n"
    entry = (kernel.backward if phase is Phase.BACKWARD else None) or kernel.entry
    names = {"kernel": dispatcher.entry(entry)}
    run: Callable[..., Any] = define(source, "launch", f"{kernel.name} {phase} traced", names)
    return run


def launch_source(
    contract: Contract, kernel: Kernel, request: Request, dispatcher: Dispatcher
) -> tuple[LaunchSource, dict[str, Any]]:
    """The launch of ``kernel`` with a launcher's arguments, and what that calls.

    A raw launch goes to the current device: where there are several, the request's is made current.
    """
    call, phase = call_source(contract, kernel, request.phase), request.phase
    entry = (kernel.backward if phase is Phase.BACKWARD else None) or kernel.entry
    kernel_function = dispatcher.entry(entry)
    names: dict[str, Any] = {"kernel": writing(contract, kernel_function) if contract.mutated else kernel_function}
    device = request.device
    place = torch.device(device.torch_device) if device is not None and device.torch_device else torch.device("cpu")
    if place.type not in ("cuda", "xpu") or torch.get_device_module(place).device_count() < 2:
        return LaunchSource(call), names
    elsewhere = CallSource("_elsewhere", tuple(signature(contract, phase)))
    source = f"""\
def {elsewhere}:
    _before = _exchange(_index_here)
    try:
        return {call}
    finally:
        _restore(_before)
"""
    names["_index_here"] = place.index
    names["_current_index"], exchange, restore = device_switch(place.type)
    scope = {**names, "_exchange": exchange, "_restore": restore}
    names["_elsewhere"] = define(source, "_elsewhere", f"{kernel.name} {phase}", scope)
    return LaunchSource(call, elsewhere), names


def can_be_captured(kernel: Kernel, request: Request, dispatcher: Dispatcher) -> bool:
    """Whether every claim of the kernel for the request's target has the property; elsewhere nothing is captured."""
    if request.device is None or not (request.device.torch_device or "").startswith("cuda"):
        return True
    spaces = dispatcher.registry.spaces
    here = [capability for _, capability in kernel.variants if capability.serving_target(request, spaces) is not None]
    return all("graph_capture" in capability.properties for capability in here)


def _outside_captures(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, which declines while a stream is captured; kernels that can be captured do not pay for the question."""

    def run_now(*arguments: Any) -> Any:
        if is_capturing():
            text = "cannot be launched while a stream is captured"
            raise CannotRun(Rejection(ReasonCode.NOT_CAPTURABLE, text, "graph_capture"))
        return run(*arguments)

    return run_now


def signature(contract: Contract, phase: Phase) -> list[str]:
    """The names of what a launcher of ``phase`` takes, in order."""
    parameters = [parameter.name for parameter in contract.parameters]
    match phase:
        case Phase.INFERENCE:
            return [*contract.names, *parameters, "out"]
        case Phase.TRAINING | Phase.FORWARD_AD:
            return [*contract.names, *parameters]
        case Phase.BACKWARD:
            grads = [f"grad_{output.name}" for output in contract.outputs if output.differentiable]
            return [*grads, *contract.backward_inputs, *(saved.name for saved in contract.saved), *parameters, "needs"]


def call_source(contract: Contract, kernel: Kernel, phase: Phase) -> CallSource:
    """The call of ``kernel`` with a launcher's arguments: one call, no loops.

    Features that the kernel does not list are neutral, and not passed.
    """
    left_out = {feature.name for feature in contract.features if feature.name not in kernel.features}
    if contract.mutated:
        left_out.add("out")
    by_keyword = {parameter.name for parameter in contract.parameters}
    if phase is Phase.BACKWARD:
        by_keyword.add("needs")  # `out` may be the name of an output there
    else:
        # one that is left out takes no place of those behind it
        by_keyword |= {"out", *(tensor.name for tensor in contract.tensors if tensor.keyword or tensor.feature)}
    names = [name for name in signature(contract, phase) if name not in left_out]
    positional = tuple(name for name in names if name not in by_keyword)
    keywords = {name: name for name in names if name in by_keyword}
    if phase is Phase.TRAINING and contract.saved and kernel.saves in ("contract", "own"):
        keywords["save"] = "True"
    if phase is not Phase.BACKWARD or left_out.isdisjoint(contract.names):
        return CallSource("kernel", positional, keywords)
    # the kernel knows nothing of tensors that it does not take: neither whether their gradients are needed
    taken = [place for place, name in enumerate(contract.names) if name not in left_out]
    keywords["needs"] = f"({''.join(f'needs[{place}], ' for place in taken)})"
    spread = [f"_g[{taken.index(i)}]" if i in taken else "None" for i in range(len(contract.names))]
    return CallSource("kernel", positional, keywords, f"(lambda _g: ({', '.join(spread)}))({{call}})")
