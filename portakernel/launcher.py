"""A kernel's entry under the one signature that its phase has, on the device of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from portakernel.contract import Contract
from portakernel.dispatch import Dispatcher
from portakernel.fast_path import define
from portakernel.kernel import Kernel
from portakernel.request import Phase, Request


def launcher(contract: Contract, kernel: Kernel, request: Request, dispatcher: Dispatcher) -> Callable[..., Any]:
    """``kernel`` for the request's phase, taking all arguments by position, on its device whichever is current."""
    return _on_device(request, _adapter(contract, kernel, request.phase, dispatcher))


def signature(contract: Contract, phase: Phase) -> list[str]:
    """The names of what a launcher of ``phase`` takes, in order."""
    tensors = [tensor.name for tensor in contract.tensors]
    parameters = [parameter.name for parameter in contract.parameters]
    match phase:
        case Phase.INFERENCE:
            return [*tensors, *parameters, "out"]
        case Phase.TRAINING | Phase.FORWARD_AD:
            return [*tensors, *parameters]
        case Phase.BACKWARD:
            grads = [f"grad_{output.name}" for output in contract.outputs]
            return [*grads, *tensors, *(saved.name for saved in contract.saved), *parameters, "needs"]


def _adapter(contract: Contract, kernel: Kernel, phase: Phase, dispatcher: Dispatcher) -> Callable[..., Any]:
    """Generated code: one call, no loops. Features that the kernel does not list are neutral, and not passed."""
    names = signature(contract, phase)
    parameters = {parameter.name: parameter for parameter in contract.parameters}
    left_out = {name for name, p in parameters.items() if p.feature and name not in kernel.features}
    by_keyword = {*parameters, "out", "needs"}
    passed = [f"{name}={name}" if name in by_keyword else name for name in names if name not in left_out]
    if phase is Phase.TRAINING and contract.saved:
        passed.append("save=True")
    entry = kernel.backward if phase is Phase.BACKWARD else kernel.entry
    source = f"def launch({', '.join(names)}):\n    return kernel({', '.join(passed)})\n"
    function = dispatcher.entry(entry or kernel.entry)
    launch: Callable[..., Any] = define(source, "launch", f"{kernel.name} {phase}", {"kernel": function})
    return launch


def _on_device(request: Request, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` with the request's device current, where there are several: a raw launch goes to the current one."""
    device = torch.device(request.device.torch_device) if request.device and request.device.torch_device else None
    if device is None or device.type != "cuda" or torch.cuda.device_count() < 2:
        return run
    index = device.index

    def run_there(*arguments: Any) -> Any:
        with torch.cuda.device(index):
            return run(*arguments)

    return run_there
