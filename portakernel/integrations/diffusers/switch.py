"""What is switched on: the backend's name, which models were set to it, and how everything was before."""
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import gc
import threading
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from diffusers.models.modeling_utils import ModelMixin
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from portakernel.errors import ArgumentTypeError
from portakernel.integrations.client import client
from portakernel.integrations.diffusers import backend
from portakernel.integrations.diffusers.attention import attention
from portakernel.integrations.diffusers.calls import NAME, OP
from portakernel.integrations.diffusers.processors import attention_modules, replace, restore, takes_backends
from portakernel.integrations.diffusers.steps import Step
from portakernel.integrations.ledger import Row
from portakernel.integrations.outcome import Enabled, Left, Outcome, Replaced

# What torch.compile's module, and those of its distributed packages, call the model that they wrap.
_WRAPPED = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module"})


class Switch:
    """Everything that ``enable`` changed, so that ``disable`` can restore it. Models that are gone are forgotten."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._member: Any = None
        self._active_before: Any = None
        # Of each model, what its processors were set to.
        self._models: WeakKeyDictionary[nn.Module, WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
        self._steps: WeakKeyDictionary[nn.Module, Step] = WeakKeyDictionary()
        self._watch: Any = None

    def enable(self, model: ModelMixin | None) -> Enabled:
        """As ``portakernel.integrations.diffusers.enable``."""
        _check(model, "enable")
        with self._lock:
            first = self._member is None if model is None else model not in self._models
            outcome = self._add()
            if model is None:
                outcome += self._watch_all()
            else:
                outcome += self._set(model)
            return Enabled(outcome, partial(self.disable, model) if first else None)

    def disable(self, model: ModelMixin | None) -> None:
        """As ``portakernel.integrations.diffusers.disable``."""
        _check(model, "disable")
        with self._lock:
            if self._member is None:
                return
            for each in list(self._models) if model is None else [model]:
                self._reset(each)
            if not self._models and backend.active() is self._member and (model is None or self._watch is None):
                backend.activate(self._active_before)
            if model is None:
                self._remove()

    def report(self) -> tuple[Row, ...]:
        """As ``portakernel.integrations.diffusers.report``."""
        with self._lock:
            bypassed = tuple(row for step in list(self._steps.values()) if (row := step.row()) is not None)
            counted = client(NAME).report()
            if self._member is not None and not counted and not bypassed:
                reason = f'no model was called since it was enabled; call set_attention_backend("{backend.NAME}")'
                return (Row(OP, reason, 0, 0),)
            return counted + bypassed

    def _add(self) -> Outcome:
        """The name is known from now on."""
        what = f'the name "{backend.NAME}" for set_attention_backend, attention_backend and DIFFUSERS_ATTN_BACKEND'
        if self._member is None:
            named = backend.named_by_environment()
            self._active_before = backend.dispatch() and backend.active()
            self._member = backend.add(attention)
            if named:
                backend.activate(self._member)
        return Outcome((Replaced(OP, what),))

    def _remove(self) -> None:
        if self._watch is not None:
            self._watch.remove()
            self._watch = None
        for step in list(self._steps.values()):
            step.stop()
        self._steps.clear()
        backend.remove()
        self._member = None
        client(NAME).disable()

    def _set(self, model: ModelMixin) -> Outcome:
        """Sets a model to the backend, by diffusers' own call."""
        outcome = Outcome()
        before = self._models.setdefault(model, WeakKeyDictionary())
        for module in attention_modules(model):
            if replace(module):
                before[module] = None
                outcome += Replaced(OP, "AttnProcessor2_0, by one that asks diffusers for its backend")
            elif takes_backends(module.processor):
                if module.processor._attention_backend is not self._member:
                    before[module] = module.processor._attention_backend
                outcome += Replaced(OP, type(module.processor).__name__)
            else:
                reason = "it calls torch's attention itself, and no backend of diffusers reaches it"
                outcome += Left(OP, type(module.processor).__name__, reason)
        model.set_attention_backend(backend.NAME)
        self._watch_step(model, asked=True)
        return outcome

    def _reset(self, model: nn.Module) -> None:
        before = self._models.pop(model, None)
        step = self._steps.pop(model, None)
        if step is not None:
            step.stop()
        for module, former in [] if before is None else list(before.items()):
            restore(module)
            if takes_backends(module.processor) and module.processor._attention_backend is self._member:
                module.processor._attention_backend = former

    def _watch_all(self) -> Outcome:
        """Models that are there, and those that are made from now on, are to be warned of where they are bypassed."""
        if self._watch is None:
            self._watch = register_module_module_registration_hook(self._registered)
            # by their types: a lazy module's or a proxy's own __class__ may import or compute
            models = [each for each in gc.get_objects() if issubclass(type(each), ModelMixin)]
            for model in models:
                self._watch_step(model, asked=False)
            for model in models:
                for part in model.modules():
                    if part is not model:
                        self._leave_step(part)
        reason = f'until their set_attention_backend("{backend.NAME}") is called, or the process-wide backend is it'
        return Outcome(left=(Left(OP, "models", reason),))

    def _registered(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        """A model got a part, or became one: of a UNet, say, whose Transformer2DModel is a model, too."""
        if isinstance(parent, ModelMixin):
            self._watch_step(parent, asked=False)
        if module is not None and name not in _WRAPPED:
            self._leave_step(module)

    def _leave_step(self, part: nn.Module) -> None:
        """What is part of a model that is watched is not watched, unless that was asked for."""
        step = self._steps.get(part)
        if step is not None and not step.asked:
            step.stop()
            del self._steps[part]

    def _watch_step(self, model: nn.Module, *, asked: bool) -> None:
        step = self._steps.get(model)
        if step is not None and not asked:
            return
        if step is not None:
            step.stop()
        self._steps[model] = Step(model, asked=asked)


@functools.cache
def switch() -> Switch:
    """The process's switch."""
    return Switch()


def _check(model: object, function: str) -> None:
    if model is not None and not isinstance(model, ModelMixin):
        raise ArgumentTypeError(
            f"{function} takes a model of diffusers (a ModelMixin), or nothing; {type(model).__name__} was given. Of a"
            " pipeline, give its transformer or its unet"
        )
