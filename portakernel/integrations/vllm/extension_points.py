"""vLLM's extension points: its registry of layer classes, and what happens as modules become part of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.logits_processor import LogitsProcessor

from portakernel.errors import PortakernelError
from portakernel.integrations.vllm.classes import SERVED, replacement, vllm_class
from portakernel.integrations.vllm.layer import VllmLayer


class ExtensionPointError(PortakernelError, RuntimeError):
    """vLLM has no class of a name that it should have, or another plugin's stands where ours would."""


def register(layers: tuple[VllmLayer, ...]) -> None:
    """Puts a class of ours in the place of each layer's; all, or where one cannot be replaced none.

    Raises:
        ExtensionPointError: as its name says.
    """
    wanted: list[tuple[VllmLayer, Any]] = []
    for served in layers:
        try:
            in_tree = vllm_class(served)
        except (AttributeError, ImportError) as error:
            raise ExtensionPointError(
                f"vLLM has no layer class {served.layer} where it was ({error}): nothing is replaced. Leave"
                f" {served.word} out of the ops, or install a version of vLLM that was tested"
            ) from error
        there = op_registry_oot.get(served.layer)
        if there is not None and not is_ours(there):
            raise ExtensionPointError(
                f"vLLM's {served.layer} is replaced by {there.__module__}.{there.__qualname__} of another plugin, and"
                f" vLLM takes one class for a name: nothing is replaced. Leave {served.word} out of the ops, or that"
                " plugin out of VLLM_PLUGINS"
            )
        if there is None:
            wanted.append((served, in_tree))
    for served, in_tree in wanted:
        in_tree.register_oot(replacement(served), name=served.layer)


def unregister() -> None:
    """Takes our classes back."""
    for name, there in list(op_registry_oot.items()):
        if is_ours(there):
            del op_registry_oot[name]


def registered() -> tuple[VllmLayer, ...]:
    """The layers whose class is ours now."""
    return tuple(getattr(there, SERVED) for there in op_registry_oot.values() if is_ours(there))


def is_ours(class_: Any) -> bool:
    """Whether a class is one of ``replacement``."""
    return isinstance(getattr(class_, SERVED, None), VllmLayer)


def watch_births(born: Callable[[nn.Module], None]) -> Callable[[], None]:
    """Calls ``born`` with each module that becomes part of another one from now on; what is returned ends that."""

    def registered(parent: nn.Module, name: str, module: nn.Module | None) -> None:
        del parent, name
        if module is not None:
            born(module)

    handle: Any = register_module_module_registration_hook(registered)
    return handle.remove  # type: ignore[no-any-return]


def after_first_step(module: nn.Module, done: Callable[[], None]) -> None:
    """Calls ``done`` once, when the layer that ends a step of vLLM's, outside of its graphs, has run."""
    if not isinstance(module, LogitsProcessor):
        return

    def ran(*given: object) -> None:
        del given
        handle.remove()
        done()

    handle: Any = module.register_forward_hook(ran)
