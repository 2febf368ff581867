"""Instances' forwards, set and taken back: which modules of this process ops serve."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from portakernel.integrations.client import client
from portakernel.integrations.ledger import Row
from portakernel.integrations.torch_nn.choosing import is_ours
from portakernel.integrations.torch_nn.layers import NAME, TorchLayer

_FAST_PATH = (
    "0 calls so far: in inference torch.nn.TransformerEncoderLayer reads the weights and does not call its layers;"
    " torch.backends.mha.set_fastpath_enabled(False) has it call them"
)
_NOT_CALLED = "0 calls so far: the model has not run, or a module above reads the weights and does not call the layer"


@dataclass(frozen=True, slots=True)
class Served:
    """A layer that an op serves: the name that its calls are counted under, and what may keep them away."""

    layer: str
    op: str
    in_encoder: bool

    @property
    def bypassed(self) -> Row:
        """What is reported where no call came."""
        return Row(self.op, _FAST_PATH if self.in_encoder else _NOT_CALLED, 0, 0, self.layer, bypassed=True)


def rows_of(served: Iterable[Served]) -> tuple[Row, ...]:
    """What the calls of these layers came to, in their order; a layer without any is bypassed."""
    counted: dict[str, list[Row]] = {}
    for row in client(NAME).ledger.rows():
        counted.setdefault(row.layer, []).append(row)
    return tuple(row for each in served for row in counted.get(each.layer, [each.bypassed]))


class Switch:
    """The modules that ops serve; those that are gone are forgotten."""

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._models: Counter[str] = Counter()
        # Until a model's first step is done: what it is to have called by then.
        self._watched: WeakKeyDictionary[nn.Module, tuple[RemovableHandle, tuple[Served, ...]]] = WeakKeyDictionary()
        self._lock = threading.RLock()

    def name_of_model(self, model: nn.Module) -> str:
        """The model's class, with a number where several of it were patched: counts are kept by name."""
        with self._lock:
            kind = type(model).__name__
            self._models[kind] += 1
            return kind if self._models[kind] == 1 else f"{kind} {self._models[kind]}"

    def name_of(self, module: nn.Module) -> str:
        """The name that a served module's calls are counted under; empty where none serves it."""
        return self._names.get(module, "") if is_ours(_function(module)) else ""

    def serve(self, module: nn.Module, layer: str, served: type[TorchLayer]) -> None:
        """Lets one instance compute by an op; its class and all other instances stay as they are."""
        with self._lock:
            adapter = served(layer)
            client(NAME).born(layer, module)

            def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
                return adapter.forward(self, *arguments, **named)

            forward.portakernel_layer = layer  # type: ignore[attr-defined]
            module.forward = MethodType(forward, module)
            self._names[module] = layer

    def restore(self, module: nn.Module) -> bool:
        """Lets an instance compute its class's forward again; False where somebody replaced ours meanwhile."""
        with self._lock:
            self._names.pop(module, None)
            if not is_ours(_function(module)):
                return False
            del module.forward
            del module._portakernel_number
            return True

    def watch(self, model: nn.Module, served: tuple[Served, ...]) -> None:
        """Warns of layers that are bypassed, once the model's first step is done."""
        with self._lock:
            self.unwatch(model)
            self._watched[model] = model.register_forward_hook(_stepped), served

    def unwatch(self, model: nn.Module) -> tuple[Served, ...]:
        """The layers that the model was to have called by the end of its first step."""
        with self._lock:
            handle, served = self._watched.pop(model, (None, ()))
            if handle is not None:
                handle.remove()
            return served


def _stepped(model: nn.Module, _arguments: Any, _result: Any) -> None:
    """A hook of a model that is watched. A function of a module, so that models with it can be copied and pickled."""
    if torch.compiler.is_compiling():
        return
    for row in rows_of(switch().unwatch(model)):
        if row.bypassed:
            client(NAME).warn(row.layer, f"{NAME}'s {row.layer} is patched and bypassed: {row.refused}")


def _function(module: nn.Module) -> Any:
    return getattr(vars(module).get("forward"), "__func__", None)


@functools.cache
def switch() -> Switch:
    """The process's switch."""
    return Switch()
