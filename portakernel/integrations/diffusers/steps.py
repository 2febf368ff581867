"""A model's first step since it was enabled: where no call of its attention came to the backend, that is warned of."""

from __future__ import annotations

import functools
import itertools
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch import nn

from portakernel.integrations.client import client
from portakernel.integrations.diffusers.backend import NAME as BACKEND
from portakernel.integrations.diffusers.backend import active
from portakernel.integrations.diffusers.calls import LAYER, NAME, OP
from portakernel.integrations.diffusers.processors import attention_modules, takes_backends
from portakernel.integrations.ledger import Row


class Step:
    """Watches a model until its first forward is over. ``bypassed`` is why no call came, and what to change, or empty.

    ``asked``: whether the model itself was enabled. Of others, those that no backend reaches are warned of only while
    nothing was served at all: in a pipeline, that is its text encoder or autoencoder.
    """

    def __init__(self, model: nn.Module, *, asked: bool) -> None:
        self.bypassed = ""
        self.asked = asked
        self._model = ref(model)
        self._before: list[int] = []
        number = next(_numbers())
        _steps()[number] = self

        def before(module: nn.Module, inputs: Any) -> None:
            del module, inputs
            _told(number, over=False)

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            del module, inputs, output
            _told(number, over=True)

        self._handles = [model.register_forward_pre_hook(before), model.register_forward_hook(after)]

    def begin(self) -> None:
        """The model's forward begins."""
        self._before.append(_calls())

    def end(self) -> None:
        """The model's forward is over."""
        model = self._model()
        if model is None or not self._before or self._before.pop() != _calls() or self.bypassed:
            return
        self.bypassed = why_bypassed(model)
        if self.bypassed and (self.asked or backends_of(model) or not _calls()):
            client(NAME).warn(LAYER, f"portakernel's attention is enabled and bypassed: {self.bypassed}")

    def row(self) -> Row | None:
        """The report's row of a model that was bypassed, and still is."""
        model = self._model()
        if model is None or not self.bypassed or backends_of(model) == {BACKEND}:
            return None
        return Row(OP, self.bypassed, 0, 0, type(model).__name__, True)

    def stop(self) -> None:
        """Watches no longer."""
        for handle in self._handles:
            handle.remove()


def backends_of(model: nn.Module) -> set[str]:
    """The backends that a model's processors are set to; empty where none of them asks for one."""
    processors = [each.processor for each in attention_modules(model) if takes_backends(each.processor)]
    backends = [active() if each._attention_backend is None else each._attention_backend for each in processors]
    return {str(getattr(each, "value", each)) for each in backends}


def why_bypassed(model: nn.Module) -> str:
    """Why no attention call of a model came to the backend, and what to change; empty where it has no attention."""
    modules = attention_modules(model)
    if not modules:
        return ""
    name, backends = type(model).__name__, backends_of(model)
    if not backends:
        kinds = ", ".join(sorted({type(each.processor).__name__ for each in modules}))
        return (
            f"{name}'s processors ({kinds}) call torch's attention themselves, no backend of diffusers reaches them;"
            " where they are AttnProcessor2_0, portakernel.integrations.diffusers.enable(model) mends that"
        )
    if backends == {BACKEND}:
        return f"{name} is set to {BACKEND}, and its forward called no attention through diffusers' dispatch"
    return (
        f"{name} is set to the backend {', '.join(sorted(backends))}; call its"
        f' set_attention_backend("{BACKEND}"), or set DIFFUSERS_ATTN_BACKEND={BACKEND}'
    )


def _calls() -> int:
    return sum(row.calls + row.traces for row in client(NAME).ledger.rows())


@functools.cache
def _numbers() -> itertools.count[int]:
    return itertools.count()


@functools.cache
def _steps() -> WeakValueDictionary[int, Step]:
    """Steps by number: a hook holds a number alone, which a trace takes for a constant."""
    return WeakValueDictionary()


def _told(number: int, *, over: bool) -> None:
    if torch.compiler.is_compiling():
        _told_in_trace(number, over)
        return
    step = _steps().get(number)
    if step is not None and over:
        step.end()
        step.stop()
    elif step is not None:
        step.begin()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]  # torch.compiler is untyped
def _told_in_trace(number: int, over: bool) -> bool:
    # A trace is a step, too. Its hooks stay: without them the graph would be made anew.
    step = _steps().get(number)
    if step is not None and over:
        step.end()
    elif step is not None:
        step.begin()
    return True
