"""What is switched on under vLLM in this process, and what came of it."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

import vllm.envs
from torch import nn

from portakernel.config import Config
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.integrations.client import EnabledLayer, client
from portakernel.integrations.ledger import Row
from portakernel.integrations.outcome import Left, Outcome, Replaced
from portakernel.integrations.vllm import attention, compile_cache, extension_points, linear
from portakernel.integrations.vllm.classes import FORWARDS, OFF, ask, ask_no_more, vllm_class
from portakernel.integrations.vllm.fusions import lost_fusions
from portakernel.integrations.vllm.layer import NAME, VllmLayer
from portakernel.integrations.vllm.rotary import LEFT as LEFT_ROTARIES
from portakernel.words.client_names import CLIENTS

WORDS = frozenset(CLIENTS[NAME])
_FROM_CACHE = "in a graph that vLLM's cache kept, traced by an earlier process with these settings"


_ATTENTION_REMEDY = "another plugin may not register a backend over CPU_ATTN"
_LINEAR_REMEDY = "--linear-backend must be auto, and VLLM_DISABLED_KERNELS may not name it"


_NOT_LOADED = (
    "PORTAKERNEL_CLIENTS names vllm, and vLLM did not call portakernel's entry point in this process: where"
    " VLLM_PLUGINS is set it must name portakernel, and worker_reports(llm) asks engines of a process of their own"
)


class Switch:
    """What ``enable`` replaced, so that ``disable`` can take it back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._words: frozenset[str] = frozenset()
        self._unwatch: Callable[[], None] | None = None
        # Layers that are vLLM's although their op is enabled, with the reason.
        self._left: Counter[tuple[str, str, str]] = Counter()
        # What was compiled as a whole, and may come out of vLLM's cache untraced.
        self._compiled: WeakSet[nn.Module] = WeakSet()

    def enable(self, ops: Iterable[str] | None) -> Outcome:
        """As ``portakernel.integrations.vllm.enable``."""
        wanted = _checked_ops(ops)
        with self._lock:
            layers = tuple(layer for layer in FORWARDS if layer.word in wanted)
            extension_points.register(layers)
            if "paged_attention" in wanted:
                attention.register()
                if not attention.elsewhere():
                    client(NAME).enable(EnabledLayer(attention.LAYER, attention.WORD, _ATTENTION_REMEDY))
            if "scaled_mm" in wanted:
                linear.register()
                client(NAME).enable(EnabledLayer(linear.LAYER, "scaled_mm", _LINEAR_REMEDY))
            self._words |= wanted
            for layer in layers:
                client(NAME).enable(EnabledLayer(layer.layer, layer.op, _remedy(layer)))
            ask(layers)
            vllm.envs.environment_variables[compile_cache.FACTOR] = self.digest
            if self._unwatch is None:
                self._unwatch = extension_points.watch_births(self._born)
            return self._outcome(layers)

    def disable(self) -> None:
        """As ``portakernel.integrations.vllm.disable``."""
        with self._lock:
            extension_points.unregister()
            linear.unregister()
            attention.unregister()
            ask_no_more()
            self._words = frozenset()
            client(NAME).disable()
            vllm.envs.environment_variables.pop(compile_cache.FACTOR, None)
            if self._unwatch is not None:
                self._unwatch()
                self._unwatch = None

    def digest(self) -> str:
        """What vLLM's cache of graphs is to tell apart."""
        return compile_cache.digest(self._words)

    def report(self) -> tuple[Row, ...]:
        """As ``portakernel.integrations.vllm.report``."""
        if not self._words and NAME in Config.from_environment().clients:
            return (Row("all", _NOT_LOADED, 0, 0, "", bypassed=True),)
        rows = tuple(map(self._noted, _of_this_model(client(NAME).report())))
        left = tuple(
            Row(op, f"{reason} ({count} made)", 0, 0, layer) for (layer, op, reason), count in self._left.items()
        )
        unimplemented = (
            Row("scaled_mm", f"{reason} (asked {count} times)", 0, 0, linear.LAYER)
            for reason, count in linear.left.items()
        )
        reason = attention.elsewhere() if attention.WORD in self._words else ""
        refused = (Row(attention.WORD, reason, 0, 0, attention.LAYER),) if reason else ()
        return (*rows, *left, *unimplemented, *refused)

    def stepped(self) -> None:
        """A whole step is done."""
        client(NAME).stepped(self._cached())

    def _noted(self, row: Row) -> Row:
        if row.bypassed and row.layer in self._cached():
            return dataclasses.replace(row, refused="", bypassed=False, note=_FROM_CACHE)
        lost = "" if row.refused else ", ".join(lost_fusions(row.layer))
        return dataclasses.replace(row, note=f"vLLM's fusions no longer match: {lost}") if lost else row

    def _cached(self) -> frozenset[str]:
        """The layers that are in graphs which vLLM's cache kept, where there are such graphs."""
        if not any(getattr(module, "was_aot_compile_fn_loaded_from_disk", False) for module in self._compiled):
            return frozenset()
        return frozenset(layer.layer for layer in extension_points.registered()) - OFF

    def _outcome(self, layers: tuple[VllmLayer, ...]) -> Outcome:
        outcome = Outcome()
        for layer in layers:
            outcome += Replaced(layer.op, f"vLLM's {layer.layer}, of layers made from now on")
        if attention.WORD in self._words:
            reason = attention.elsewhere()
            outcome += (
                Left(attention.WORD, "vLLM's attention", reason)
                if reason
                else Replaced("write_kv_cache, paged_attention", "vLLM's backend CPU_ATTN, of layers made from now on")
            )
        if "scaled_mm" in self._words:
            outcome += Replaced("scaled_mm", "fp8 linear layers made from now on, before vLLM's own kernels")
            outcome += Left("scaled_mm", "fp8 linear layers of blocks", linear.BLOCKS)
        if any(layer.op == "rotary_embedding" for layer in layers):
            for name, reason in LEFT_ROTARIES.items():
                outcome += Left("rotary_embedding", f"vLLM's {name}", reason)
        return outcome

    def _born(self, module: nn.Module) -> None:
        """A module became part of another one."""
        extension_points.after_first_step(module, self.stepped)
        if hasattr(module, "aot_compiled_fn") or hasattr(module, "was_aot_compile_fn_loaded_from_disk"):
            self._compiled.add(module)
        class_: Any = type(module)
        if extension_points.is_ours(class_):
            return
        for layer in extension_points.registered():
            in_tree = vllm_class(layer)
            if class_ is in_tree:
                self._left[layer.layer, layer.op, "made before portakernel was enabled"] += 1
            elif isinstance(module, in_tree) and class_.__name__ not in _registered_names():
                reason = f"a subclass of {layer.layer}: vLLM replaces a class by its own name"
                self._left[class_.__name__, layer.op, reason] += 1


def _of_this_model(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Without the rotary classes that nobody made, where another one was: a model has one or two of the many."""
    rotary = [row for row in rows if row.op == "rotary_embedding"]
    if all(_is_absent(row) for row in rotary):
        return rows
    return tuple(row for row in rows if not (row.op == "rotary_embedding" and _is_absent(row)))


def _is_absent(row: Row) -> bool:
    return row.calls == row.traces == 0 and not row.bypassed


def _registered_names() -> frozenset[str]:
    return frozenset(layer.layer for layer in extension_points.registered())


def _remedy(layer: VllmLayer) -> str:
    in_tree = vllm_class(layer)
    off = f"-{in_tree.name}"
    return (
        f"compilation_config's custom_ops must not hold {off}, and another plugin may not change"
        f" enabled() or the forward of vLLM's {layer.layer}"
    )


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
        raise UnknownNameError("op of vllm", name, WORDS, where="enable")
    if not wanted:
        raise ArgumentValueError(f"ops is empty; name some of {', '.join(sorted(WORDS))}, or leave it out")
    return wanted
