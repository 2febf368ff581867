"""A kernel's entry under the one signature that its phase has, on the device of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from portakernel.contract import Contract
from portakernel.dispatch import Dispatcher
from portakernel.guard_key import define
from portakernel.kernel import Kernel
from portakernel.request import Phase, Request


def launcher(contract: Contract, kernel: Kernel, request: Request, dispatcher: Dispatcher) -> Callable[..., Any]:
    """``kernel`` for the request's phase, taking all arguments by position, on its device whichever is current."""
    return _on_device(request, _adapter(contract, kernel, request.phase, dispatcher))


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


def _adapter(contract: Contract, kernel: Kernel, phase: Phase, dispatcher: Dispatcher) -> Callable[..., Any]:
    """Generated code: one call, no loops. Features that the kernel does not list are neutral, and not passed."""
    names = signature(contract, phase)
    left_out = {feature.name for feature in contract.features if feature.name not in kernel.features}
    by_keyword = {parameter.name for parameter in contract.parameters}
    if phase is Phase.BACKWARD:
        by_keyword.add("needs")  # `out` may be the name of an output there
    else:
        by_keyword |= {"out", *(tensor.name for tensor in contract.tensors if tensor.keyword)}
    arguments = {name: f"{name}={name}" if name in by_keyword else name for name in names if name not in left_out}
    if phase is Phase.TRAINING and contract.saved and kernel.saves in ("contract", "own"):
        arguments["save"] = "save=True"
    returned = "{call}"
    if phase is Phase.BACKWARD and left_out & set(contract.names):
        # the kernel knows nothing of tensors that it does not take: neither whether their gradients are needed
        taken = [place for place, name in enumerate(contract.names) if name not in left_out]
        arguments["needs"] = f"needs=({''.join(f'needs[{place}], ' for place in taken)})"
        spread = [f"g[{taken.index(i)}]" if i in taken else "None" for i in range(len(contract.names))]
        returned = f"(lambda g: ({', '.join(spread)}))({{call}})"
    positional = [text for text in arguments.values() if "=" not in text]
    call = f"kernel({', '.join([*positional, *(text for text in arguments.values() if '=' in text)])})"
    entry = kernel.backward if phase is Phase.BACKWARD else kernel.entry
    source = f"def launch({', '.join(names)}):\n    return {returned.format(call=call)}\n"
    function = dispatcher.entry(entry or kernel.entry)
    launch: Callable[..., Any] = define(source, "launch", f"{kernel.name} {phase}", {"kernel": function})
    return launch


def _on_device(request: Request, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` with the request's device current, where there are several: a raw launch goes to the current one."""
    device = torch.device(request.device.torch_device) if request.device and request.device.torch_device else None
    if device is None or device.type not in ("cuda", "xpu") or torch.get_device_module(device).device_count() < 2:
        return run
    index, module = device.index, torch.get_device_module(device)

    def run_there(*arguments: Any) -> Any:
        with module.device(index):
            return run(*arguments)

    return run_there
