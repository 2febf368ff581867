"""The methods of SGLang that are hooked, by its own ``HookRegistry``, and whether the hooks are there.

SGLang logs a hook without a target and goes on without it: kernels would stop being used after a renaming, and nobody
would know. Each target is therefore looked up before, and each hook after SGLang has put it there.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang.kernels.fused_op import BaseFusedOp
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from portakernel.errors import PortakernelError
from portakernel.integrations.sglang.gates import GeluGate, SiluGate
from portakernel.integrations.sglang.layer import SglangLayer
from portakernel.integrations.sglang.norms import GemmaNorm, Norm
from portakernel.integrations.sglang.rotary import Rotary


class MissingHookError(PortakernelError, LookupError):
    """A method of SGLang that portakernel would hook is not there, is another one, or did not take the hook."""


@dataclass(frozen=True, slots=True)
class Target:
    """A class of SGLang by its dotted path, and how the op serves it."""

    path: str
    op: str
    layer: type[SglangLayer]

    @property
    def name(self) -> str:
        """The class's own name."""
        return self.path.rpartition(".")[2]

    @property
    def method(self) -> str:
        """The path of what is hooked: the one entry of all that SGLang's platforms and backends compute."""
        return f"{self.path}.forward"


TARGETS = (
    Target("sglang.srt.layers.layernorm.RMSNorm", "rms_norm", Norm),
    Target("sglang.srt.layers.layernorm.GemmaRMSNorm", "rms_norm", GemmaNorm),
    Target("sglang.srt.layers.activation.SiluAndMul", "silu_and_mul", SiluGate),
    Target("sglang.srt.layers.activation.GeluAndMul", "gelu_and_mul", GeluGate),
    Target("sglang.srt.layers.rotary_embedding.base.RotaryEmbedding", "rotary_embedding", Rotary),
)


def resolved(target: Target) -> type[Any]:
    """The class of a target, whose forward and its parameters are those that the hook was written for.

    Raises:
        MissingHookError: with what is there instead.
    """
    try:
        found: Any = pkgutil.resolve_name(target.path)
    except (ImportError, AttributeError) as error:
        raise MissingHookError(
            f"SGLang has no {target.path}, which portakernel hooks for {target.op} ({error}); install a tested version,"
            f" or leave {target.op} out of PORTAKERNEL_CLIENTS"
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseFusedOp)):
        raise MissingHookError(
            f"SGLang's {target.path} is no BaseFusedOp, so that a hook on its forward would not be all of its calls;"
            f" install a tested version, or leave {target.op} out of PORTAKERNEL_CLIENTS"
        )
    class_: Any = found
    names = tuple(inspect.signature(class_.forward_native).parameters)[1:]
    if names != target.layer.names:
        raise MissingHookError(
            f"SGLang's {target.path} takes ({', '.join(names)}), not ({', '.join(target.layer.names)}) for which"
            f" portakernel's hook was written; install a tested version, or leave {target.op} out of"
            " PORTAKERNEL_CLIENTS"
        )
    return found


def apply(hooks: dict[Target, Callable[..., Any]]) -> dict[Target, Callable[..., Any]]:
    """Hooks the targets' forward by AROUND; what each hook wraps.

    SGLang applies everything that is registered by then, and no more what a later plugin registers for these methods.

    Raises:
        MissingHookError: a hook is not where SGLang was asked to put it.
    """
    for target, hook in hooks.items():
        HookRegistry.register(target.method, hook, HookType.AROUND)
        registered = HookRegistry._hooks[target.method]
        registered.insert(0, registered.pop())  # innermost: those of other plugins see the calls that an op serves
        if target.method in HookRegistry._patched:  # of another plugin: hooked once more, with all that there are
            _unhook(target)
    HookRegistry.apply_hooks()
    return {target: _wrapped(target, hook) for target, hook in hooks.items()}


def remove(hooks: dict[Target, Callable[..., Any]]) -> None:
    """Takes hooks out again; those of other plugins on the same methods stay."""
    for target, hook in hooks.items():
        HookRegistry._hooks[target.method] = [
            each for each in HookRegistry._hooks[target.method] if each[1] is not hook
        ]
        if target.method in HookRegistry._patched:
            _unhook(target)
        if not HookRegistry._hooks[target.method]:
            del HookRegistry._hooks[target.method]
    HookRegistry.apply_hooks()


def _unhook(target: Target) -> None:
    """The class has the forward of its base again, which is not its own (``BaseFusedOp``)."""
    HookRegistry._patched.discard(target.method)
    class_: Any = pkgutil.resolve_name(target.path)
    if "forward" in vars(class_):
        del class_.forward


def _wrapped(target: Target, hook: Callable[..., Any]) -> Callable[..., Any]:
    """What a hook wraps; the hook may be wrapped in turn by those of other plugins."""
    class_: Any = pkgutil.resolve_name(target.path)
    method: Any = vars(class_).get("forward")
    while method is not None:
        inner: Any = getattr(method, "__wrapped__", None)
        if inner is not None and inspect.getclosurevars(method).nonlocals.get("hook") is hook:
            return inner  # type: ignore[no-any-return]
        method = inner
    raise MissingHookError(
        f"SGLang did not put portakernel's hook on {target.method}: its log says why (Failed to apply hooks). Another"
        f" plugin may have replaced the method; SGLANG_PLUGINS names those to load"
    )
