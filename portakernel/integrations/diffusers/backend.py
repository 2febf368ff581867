"""How the name ``portakernel`` gets into diffusers' list of attention backends, and out again.

diffusers has no public way to add one. Its names are members of an Enum, its functions values of a registry; both are
written here, and nowhere else.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

NAME = "portakernel"
_MEMBER = "PORTAKERNEL"
_MODULE = "diffusers.models.attention_dispatch"


class EveryName:
    """The argument names that the backend takes: all, because diffusers drops in silence what a backend does not list.

    The function itself refuses what it does not know.
    """

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        """Under DIFFUSERS_ATTN_CHECKS what is not listed here is warned of as dropped."""
        shared = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        return iter((*shared, "return_lse", "window_size", "_parallel_config"))


def dispatch() -> Any:
    """The module with diffusers' backends, also where DIFFUSERS_ATTN_BACKEND names ours, which its import refuses."""
    if _MODULE in sys.modules or not named_by_environment():
        return importlib.import_module(_MODULE)
    constants: Any = importlib.import_module("diffusers.utils.constants")
    constants.DIFFUSERS_ATTN_BACKEND = "native"
    try:
        return importlib.import_module(_MODULE)
    finally:
        constants.DIFFUSERS_ATTN_BACKEND = NAME


def named_by_environment() -> bool:
    """Whether DIFFUSERS_ATTN_BACKEND was ``portakernel`` when diffusers read it."""
    return bool(importlib.import_module("diffusers.utils.constants").DIFFUSERS_ATTN_BACKEND == NAME)


def member() -> Any:
    """The Enum's member of our name; None where it has none."""
    return dispatch().AttentionBackendName._value2member_map_.get(NAME)


def add(function: Callable[..., Any]) -> Any:
    """Makes the name known, as one that computes by ``function``; the member that stands for it."""
    module = dispatch()
    names, registry = module.AttentionBackendName, module._AttentionBackendRegistry
    made = str.__new__(names, NAME)
    made._name_, made._value_, made.__objclass__, made._sort_order_ = _MEMBER, NAME, names, len(names)
    type.__setattr__(names, _MEMBER, made)  # EnumType lets no member be set
    names._member_names_.append(_MEMBER)
    names._member_map_[_MEMBER] = made
    names._value2member_map_[NAME] = made
    registry._backends[made] = function
    registry._constraints[made] = []
    registry._supported_arg_names[made] = EveryName()
    return made


def remove() -> None:
    """Takes the name out again. Processors that are set to it follow the active backend, as new ones do."""
    module = dispatch()
    names, registry = module.AttentionBackendName, module._AttentionBackendRegistry
    gone = names._value2member_map_.pop(NAME)
    names._member_map_.pop(_MEMBER)
    names._member_names_.remove(_MEMBER)
    type.__delattr__(names, _MEMBER)
    for table in (registry._backends, registry._constraints, registry._supported_arg_names):
        table.pop(gone, None)
    # set_attention_backend writes the member into processors of which diffusers keeps no list
    for holder in gc.get_referrers(gone):
        attributes = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        if attributes.get("_attention_backend") is gone:
            attributes["_attention_backend"] = None


def active() -> Any:
    """The backend of everything that is set to none: one for the whole process."""
    return dispatch()._AttentionBackendRegistry._active_backend


def activate(backend: Any) -> None:
    """Makes a member the backend of everything that is set to none."""
    dispatch()._AttentionBackendRegistry.set_active_backend(backend)
