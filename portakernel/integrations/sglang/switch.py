"""What is switched on under SGLang in this process, and what came of it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.integrations.client import EnabledLayer, client, record
from portakernel.integrations.outcome import Left, Outcome, Replaced
from portakernel.integrations.sglang import hooks
from portakernel.integrations.sglang.hooks import TARGETS, Target
from portakernel.integrations.sglang.layer import NAME, SglangLayer
from portakernel.words.client_names import CLIENTS

WORDS = frozenset(CLIENTS[NAME])
# The layer that ends a forward of the model, outside of SGLang's graphs.
_LAST = ("sglang.srt.layers.logits_processor", "LogitsProcessor")


class Switch:
    """What ``enable`` hooked, so that ``disable`` can take it back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._hooks: dict[Target, Callable[..., Any]] = {}
        self._originals: dict[Target, Callable[..., Any]] = {}
        self._classes: dict[Target, type[Any]] = {}
        self._served: dict[type[Any], SglangLayer] = {}
        self._instances: WeakSet[nn.Module] = WeakSet()
        self._watch: Any = None

    def enable(self, ops: Iterable[str] | None) -> Outcome:
        """As ``portakernel.integrations.sglang.enable``."""
        wanted = _checked_ops(ops)
        with self._lock:
            targets = tuple(target for target in TARGETS if target.op in wanted)
            added = {target: self._hook(target) for target in targets if target not in self._hooks}
            classes = {target: hooks.resolved(target) for target in added}
            try:
                originals = hooks.apply(added)
            except hooks.MissingHookError:
                hooks.remove(added)
                raise
            self._hooks |= added
            self._classes |= classes
            self._originals |= originals
            for target in added:
                self._layer(target, classes[target])
            if self._watch is None:
                self._watch = register_module_module_registration_hook(self._registered)
            return _outcome(targets)

    def disable(self) -> None:
        """As ``portakernel.integrations.sglang.disable``."""
        with self._lock:
            hooks.remove(self._hooks)
            for table in (self._hooks, self._originals, self._classes, self._served):
                table.clear()
            for module in list(self._instances):
                client(NAME).forget(module)
                del module.portakernel_layer, module.portakernel_pinned
            self._instances.clear()
            if self._watch is not None:
                self._watch.remove()
                self._watch = None
            client(NAME).disable()

    def _hook(self, target: Target) -> Callable[..., Any]:
        def around(original: Callable[..., Any], module: Any, *given: Any, **named: Any) -> Any:
            served = getattr(module, "portakernel_layer", None)
            if served is None:
                if torch.compiler.is_compiling():
                    record(NAME, target.op, "made before portakernel was enabled, and compiled", target.name)
                    return original(module, *given, **named)
                served = self._born(module, target)
            return served.call(module, given, named)

        return around

    def _layer(self, target: Target, class_: type[Any]) -> SglangLayer:
        """What serves a class, of a target or a subclass of one."""
        served = self._served.get(class_)
        if served is None:
            name = class_.__name__
            formula = _other_formula(class_, self._classes[target])
            served = target.layer(name, target.op, self._originals[target], formula)
            client(NAME).enable(EnabledLayer(name, target.op, _remedy(class_, target, self._classes[target])))
            self._served[class_] = served
        return served

    def _born(self, module: Any, target: Target) -> SglangLayer:
        with self._lock:
            served = self._layer(target, type(module))
            module.portakernel_pinned = _pinned(module)
            module.portakernel_layer = served
            client(NAME).born(served.layer, module)
            self._instances.add(module)
            return served

    def _registered(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        """A module became part of another one."""
        del parent, name
        if module is None:
            return
        last = getattr(sys.modules.get(_LAST[0]), _LAST[1], None)
        if last is not None and isinstance(module, last):
            _after_first_step(module)
        for target, class_ in self._classes.items():
            if isinstance(module, class_) and not hasattr(module, "portakernel_layer"):
                self._born(module, target)


def _after_first_step(module: nn.Module) -> None:
    """Looks for layers that were bypassed, once, when the model's last layer has run."""

    def ran(*given: object) -> None:
        del given
        handle.remove()
        client(NAME).stepped()

    handle: Any = module.register_forward_hook(ran)


def _other_formula(class_: type[Any], base: type[Any]) -> str:
    """Why a subclass does not compute what its base does; empty where it does, as far as its methods tell."""
    for each in class_.__mro__[: class_.__mro__.index(base)]:
        own = sorted(name for name in vars(each) if name.startswith("forward_"))
        if own:
            return f"{each.__name__} has its own {own[0]}"
    return ""


def _pinned(module: Any) -> str:
    """Why an instance is to compute by one of SGLang's ways and no other; empty where it is not.

    SGLang keeps the way that it chose at the first call where it keeps the one that a constructor prescribes.
    """
    method = module._forward_method
    if method is None or module.is_torch_compile:
        return ""
    name = getattr(method, "__name__", "own method")
    return f"SGLang pinned this instance to its {name}, or called it before portakernel was enabled"


def _remedy(class_: type[Any], target: Target, base: type[Any]) -> str:
    for each in class_.__mro__[: class_.__mro__.index(base)]:
        if "forward" in vars(each):
            return (
                f"{each.__name__} has a forward of its own, which a hook on {target.method} does not reach: leave"
                f" {target.op} out of PORTAKERNEL_CLIENTS, or let it call super().forward"
            )
    return (
        f"the model calls another method than forward, or another plugin replaced {target.method}: SGLANG_PLUGINS names"
        " those to load"
    )


def _outcome(targets: tuple[Target, ...]) -> Outcome:
    outcome = Outcome()
    for target in targets:
        outcome += Replaced(target.op, target.method)
        if target.op == "rms_norm" and target.name == "RMSNorm":
            reason = "SGLang norms the sum in float32, the op the one that is rounded"
            outcome += Left("rms_norm", f"{target.name} of float16 and bfloat16 with a residual", reason)
        if target.op == "rotary_embedding":
            reason = "they have forward methods of their own"
            outcome += Left("rotary_embedding", "MRotaryEmbedding, DeepseekScalingRotaryEmbedding and theirs", reason)
    return outcome


@functools.cache
def switch() -> Switch:
    """The process's switch."""
    return Switch()


def _checked_ops(ops: Iterable[str] | None) -> frozenset[str]:
    if ops is None:
        return WORDS
    if isinstance(ops, str):
        raise ArgumentTypeError(f"ops is a sequence of names, such as ({ops!r},); a text was given")
    given: Any = ops
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
        raise ArgumentTypeError(f"ops is a sequence of names, such as ('rms_norm',); this is {ops!r}")
    wanted = frozenset(ops)
    for name in sorted(wanted - WORDS):
        raise UnknownNameError("op of sglang", name, WORDS, where="enable")
    if not wanted:
        raise ArgumentValueError(f"ops is empty; name some of {', '.join(sorted(WORDS))}, or leave it out")
    return wanted
