"""How transformers is entered and left again: its registries, one instance's ``forward``, and new instances.

The ``forward`` of an instance is set as ``kernels.kernelize`` sets it, which is transformers' own way to put a kernel
into a layer. It is not called here: it knows norms of Llama's kind alone, neither Gemma's nor any MLP, resets all other
kernels of the model, depends on a package whose version has to match transformers' to the minor number, and has no way
back.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from portakernel.integrations.transformers.attention import attention
from portakernel.integrations.transformers.families import Family
from portakernel.integrations.transformers.layers import Forward
from portakernel.integrations.transformers.masks import attention_mask

NAME = "portakernel"


def register_attention() -> None:
    """Makes ``attn_implementation="portakernel"`` known, masks included.

    The registries have no way to take a name out again, and models may still be set to it: it stays, unused.
    """
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, attention_mask)


def register_as_sdpa() -> None:
    """Serves the models that are set to ``sdpa``, transformers' default, by the op."""
    AttentionInterface.register("sdpa", attention)
    AttentionMaskInterface.register("sdpa", attention_mask)


def restore_sdpa() -> None:
    """Gives ``sdpa`` back to transformers' own functions."""
    AttentionInterface.register("sdpa", sdpa_attention_forward)
    AttentionMaskInterface.register("sdpa", sdpa_mask)


def attention_of(model: PreTrainedModel) -> str:
    """The attention that a model is set to. transformers has a public way to set it and none to read it."""
    return str(model.config._attn_implementation)  # pyright: ignore[reportPrivateUsage]


def has_forward_of_its_own(module: nn.Module) -> bool:
    """Whether somebody replaced this instance's ``forward`` (kernelize, accelerate's hooks)."""
    return "forward" in vars(module)


def set_forward(module: nn.Module, forward: Forward) -> None:
    """Lets one instance compute ``forward``; its class and all other instances stay as they are."""
    module.forward = MethodType(forward, module)


def reset_forward(module: nn.Module, forward: Forward) -> None:
    """Lets the instance compute its class's ``forward`` again, unless somebody put another in place of ours."""
    found = vars(module).get("forward")
    if isinstance(found, MethodType) and found.__func__ is forward:
        del module.forward


def modelling_module(family: Family) -> Any:
    """The module with the family's layers."""
    return importlib.import_module(family.modelling_module)


def rotary_function(family: Family) -> nn.Module | None:
    """What rotates the heads in all models of a family; None where nothing can be put into its place.

    transformers makes it a module, whose ``forward`` can be set, where the package ``kernels`` is installed in a
    version that it accepts; a plain function otherwise.
    """
    found = getattr(modelling_module(family), "apply_rotary_pos_emb", None)
    return found if isinstance(found, nn.Module) else None


def watch_births(born: Callable[[nn.Module], None]) -> Callable[[], None]:
    """Calls ``born`` with each module that becomes part of another one from now on; what is returned ends that.

    By torch's hook. transformers' own seam, ``monkey_patching.register_patch_mapping``, would reach what
    from_pretrained and from_config make. It looks for the classes in every module of transformers, lazy ones included:
    where torchvision is not installed, imports fail, and so does every from_pretrained (5.20.2, 2026-11-21).
    """

    def registered(parent: nn.Module, name: str, module: nn.Module | None) -> None:
        del parent, name
        if module is not None:
            born(module)

    handle: Any = register_module_module_registration_hook(registered)
    return handle.remove  # type: ignore[no-any-return]
