"""A fresh process of ``first_call.py``: makes each call for the first time, and tells how long each took.

The question comes as JSON on stdin, the answer goes as JSON to stdout. Before the clock runs, torch's context on the
device is up and the arguments are there; nothing of Triton or of a plugin is imported.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

Call = dict[str, Any]


class Clock:
    """Milliseconds by what they were spent on."""

    def __init__(self, device: torch.device) -> None:
        self.spent_ms: dict[str, float] = {}
        self.device = device

    @contextmanager
    def spending(self, name: str) -> Iterator[None]:
        """Counts the block for ``name``, until the device is done too."""
        begin = time.perf_counter()
        yield
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        self.spent_ms[name] = 1e3 * (time.perf_counter() - begin)


def by_portakernel(call: Call, arguments: dict[str, Any], clock: Clock, compiled: list[str] | None) -> None:
    """The op's public function; of the process's first call each part for itself, in the order of the call itself.

    ``compiled`` is given with the first, to be filled with what Triton has to compile in this process.
    """
    if compiled is not None:
        with clock.spending("portakernel"):
            from portakernel import ops
            from portakernel.runtime import dispatcher

            getattr(ops, call["op"])
            now = dispatcher()
        with clock.spending("import triton"):
            importlib.import_module("triton")
        listen(compiled)
        with clock.spending("probe"):
            kernel = now.registry.kernels[call["kernel"]]
            device = next(d for d in now.registry.devices if d.torch_device == str(clock.device))
            now.readiness.probe(kernel, device)
        with clock.spending("import plugin"):
            now.entry(call["entry"])
    with clock.spending("call"):
        from portakernel import ops

        positional = [arguments[name] for name in call["positional"]]
        named = {name: arguments[name] for name in call["named"]}
        getattr(ops, call["op"])(*positional, **named, **call["values"], kernel=call["kernel"])


def by_triton(call: Call, arguments: dict[str, Any], clock: Clock, compiled: list[str] | None) -> None:
    """The kernel's own function, with every launch left to Triton's JIT."""
    module_name, _, function_name = call["entry"].partition(":")
    if compiled is not None:
        with clock.spending("import triton"):
            importlib.import_module("triton")
        listen(compiled)
    with clock.spending("import plugin"):
        module = importlib.import_module(module_name)
    _leave_launches_to_triton()
    with clock.spending("call"):
        positional = [arguments[name] for name in call["positional"]]
        named = {name: arguments[name] for name in call["named"]}
        getattr(module, function_name)(*positional, **named, **call["own_values"])


def _leave_launches_to_triton() -> None:
    """In every module of the plugin so far, ``launch`` is a plain launch from now on."""
    launch = importlib.import_module("portakernel.triton_launch.launch")

    def plain(kernel: Any, grid: Any, *args: Any, parameter: str | None = None, **meta: Any) -> None:
        kernel[grid](*args, **launch.with_options(meta))

    for name, module in list(sys.modules.items()):
        if name.startswith("portakernel_plugins.triton.") and module is not launch and hasattr(module, "launch"):
            module.launch = plain  # type: ignore[attr-defined]


def _arguments(call: Call, device: torch.device) -> dict[str, Any]:
    """Zeros: every index is in range."""
    return {
        name: torch.zeros(size, dtype=torch.uint8, device=device).view(getattr(torch, dtype)).view(shape)
        for name, (size, dtype, shape) in call["tensors"].items()
    }


def listen(compiled: list[str]) -> None:
    """From now on ``compiled`` fills with the kernels that Triton's cache has not."""
    from triton import knobs

    def told(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            compiled.append(src.name)

    knobs.compilation.listener = told


def main() -> None:
    """Answers one question."""
    asked = json.load(sys.stdin)
    device = torch.device(asked["device"])
    torch.zeros(1, device=device).add_(1).cpu()
    # what a plugin's modules import of portakernel's, and how they read their data: it is no launch's affair
    for name in ("yaml", "portakernel", "portakernel.claims.capability", "portakernel.tensors.compilation"):
        importlib.import_module(name)
    arguments = [_arguments(call, device) for call in asked["calls"]]
    way = {"portakernel": by_portakernel, "triton": by_triton}[asked["way"]]
    compiled: list[str] = []
    answer = []
    with torch.no_grad():
        for call, given in zip(asked["calls"], arguments, strict=True):
            clock = Clock(device)
            way(call, given, clock, None if answer else compiled)
            answer.append({"op": call["op"], "spent_ms": clock.spent_ms})
    json.dump({"calls": answer, "compiled": compiled}, sys.stdout)


if __name__ == "__main__":
    main()
