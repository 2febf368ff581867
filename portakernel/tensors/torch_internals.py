"""The parts of torch that have no public name, in one place: what to look at when a new torch version arrives.

Seen in torch 2.11 and 2.13. Each is what torch's own Python code uses for the same question.
"""
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
# The whole module is about private names, and torch._C's stub does not list its submodules.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._C._dynamo.guards import TensorGuards
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._functorch.utils import enable_single_level_autograd_function
from torch._guards import detect_fake_mode
from torch._ops import _OpNamespace
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from portakernel.host.as_written import as_written, mark_with

# The innermost transform of torch.func, or None.
innermost_transform: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
# The base of functions that are recorded on torch.func's innermost level alone, as each step of its own is.
SingleLevelFunction: Any = torch.autograd.function._SingleLevelFunction
on_this_level: Callable[[], AbstractContextManager[None]] = enable_single_level_autograd_function
# How many modes are active.
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
function_modes: Callable[[], int] = torch._C._len_torch_function_stack
# Whether an argument is a subclass that overrides functions, or a function mode is active: one question for both.
has_torch_function: Callable[..., bool] = torch._C._has_torch_function_variadic
# What torch.jit.trace is recording, or None.
jit_trace: Callable[[], Any] = torch._C._get_tracing_state
# Whether a CUDA (or ROCm) context exists; asking makes none.
cuda_is_initialised: Callable[[], bool] = torch.cuda.is_initialized
active_dispatch_modes: Callable[[], list[Any]] = _get_current_dispatch_mode_stack
_function_mode_stack: Callable[[], list[Any]] = _get_current_function_mode_stack
# Whether autocast is on for any device type.
any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
# `profiler._is_profiler_enabled` is true while torch.profiler records; a plain attribute, read as one.
profiler: Any = torch.autograd.profiler
# `compiler._is_exporting_flag` is true inside torch.export; Dynamo of torch 2.11 takes `is_exporting()` for constant.
compiler: Any = torch.compiler
# `forward_ad._current_level` is the level of forward-mode duals, -1 outside of all; a plain attribute, read as one.
forward_ad: Any = torch.autograd.forward_ad
# Whether a gradient that reaches a DTensor through ``to_local`` has itself none: torch 2.11 leaves None, 2.13 does not.
dtensors_lose_second_derivatives: bool = torch.__version__ < "2.13"

# What Dynamo does with a function's frame, and with those below it.
_LEFT = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
mark_with(lambda code: set_code_exec_strategy(code, _LEFT))


def is_packaging() -> bool:
    """Whether AOTInductor compiles a graph, for a package."""
    inductor: Any = sys.modules.get("torch._inductor.virtualized")
    return inductor is not None and bool(inductor.V.aot_compilation)


def is_exporting() -> bool:
    """Whether a graph is traced that is compiled later, if at all."""
    return compiler._is_exporting_flag and not is_packaging()


def only_vmap() -> bool:
    """Whether every active transform of torch.func is vmap: none of them differentiates."""
    return _transforms() <= {torch._C._functorch.TransformType.Vmap}


def some_functionalize() -> bool:
    """Whether one of torch.func's active transforms is ``functionalize``, which knows torch ops alone."""
    return torch._C._functorch.TransformType.Functionalize in _transforms()


def some_forward_mode() -> bool:
    """Whether one of torch.func's active transforms is forward-mode differentiation, be it around others."""
    return torch._C._functorch.TransformType.Jvp in _transforms()


def _transforms() -> set[Any]:
    if torch.compiler.is_dynamo_compiling():  # compiled autograd traces this, and is inside of none
        return set()
    return {level.key() for level in torch._C._functorch.get_interpreter_stack() or ()}


def only_device_contexts() -> bool:
    """Whether every active function mode is a default device, which does nothing to ops on existing tensors."""
    return all(isinstance(mode, DeviceContext) for mode in _function_mode_stack())


def device_switch(device_type: str) -> tuple[Callable[[], int], Callable[[int], int], Callable[[int], int]]:
    """Three functions of a type of device: the current one's index; another made current, returning the old; and back.

    The last makes no context on a device that has none.
    The public functions and ``torch.cuda.device`` take some microseconds around these.
    """
    return (
        getattr(torch._C, f"_{device_type}_getDevice"),
        getattr(torch._C, f"_{device_type}_exchangeDevice"),
        getattr(torch._C, f"_{device_type}_maybeExchangeDevice"),
    )


def _key_bits(*names: str) -> int:
    bits = 0
    for name in names:
        key = getattr(torch._C.DispatchKey, name, None)
        bits |= torch._C.DispatchKeySet(key).raw_repr() if key is not None else 0
    return bits


# What a dense tensor that is nothing else has: a device, autograd, autocast, views.
_BACKENDS = ("CPU", "CUDA", "HIP", "XPU", "MPS", "Meta", "PrivateUse1")
_DENSE = _key_bits("ADInplaceOrView", *(prefix + name for name in _BACKENDS for prefix in ("", "Autograd", "Autocast")))


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor is nothing but numbers in strided memory.

    Sparse, nested and quantised tensors are more, lazily negated, conjugated and zero ones less, and batched and
    functional ones are wrappers of the plain type.
    """
    keys: int = torch._C._dispatch_keys(tensor).raw_repr()
    return not keys & ~_DENSE


def autograd_is_excluded() -> bool:
    """Whether torch's dispatcher passes autograd by here, whatever grad mode says: inference mode, its own insides."""
    excluded: bool = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
    return excluded


def tensor_guard(
    tensors: Sequence[Tensor], sizes: Sequence[Sequence[int | None]], strides: Sequence[Sequence[int | None]]
) -> Callable[..., bool]:
    """A check in C++ whether tensors are like these, in a fraction of what the same questions cost from Python.

    Compared are exact type, dtype, device, ``requires_grad``, rank, the given sizes and strides (None admits any), and
    the dispatch keys that torch would act on here and now: those hold lazy negation, transforms, autocast, inference
    mode and most dispatch modes. Forward-mode duals and function modes it does not see. It must not be given a nested
    tensor, which has no strides: asking for them ends the process.
    """
    guards: Any = TensorGuards  # its stub has flat lists, and torch's own code passes one for each tensor
    check: Callable[..., bool] = guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def below_autograd() -> AbstractContextManager[None]:
    """A context in which ops are dispatched to what stands below autograd."""
    guard: AbstractContextManager[None] = torch._C._AutoDispatchBelowAutograd()
    return guard


@contextmanager
def outside_modes() -> Iterator[None]:
    """A context in which tensors are real: a probe must not see fake ones of a tracer, nor those of a transform."""
    with _disable_current_modes(), temporarily_clear_interpreter_stack():
        yield


def is_recording() -> bool:
    """Whether a mode of this thread looks for choices among kernels, as those of ``warmup`` and ``record`` do."""
    return any(getattr(mode, "looks_for_choices", False) for mode in active_dispatch_modes())


def has_tangent(tensors: Sequence[Tensor]) -> bool:
    """Whether one of the tensors is a forward-mode dual.

    A compiled graph that holds ``torch.func.jvp`` enters the level without telling ``forward_ad``; there is only one.
    """
    if forward_ad._current_level < 0 and (innermost_transform() is None or not some_forward_mode()):
        return False
    return any(forward_ad.unpack_dual(tensor, level=0).tangent is not None for tensor in tensors)


def some_are_distributed(tensors: Sequence[Any]) -> bool:
    """Whether one of the tensors is a DTensor; where nothing imported DTensors there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(tensor, module.DTensor) for tensor in tensors)


def is_jagged(tensor: object) -> bool:
    """Whether it is a nested tensor of torch's subclass; where nothing imported that there are none."""
    module = sys.modules.get("torch.nested._internal.nested_tensor")
    return module is not None and isinstance(tensor, module.NestedTensor)


def saved_tensor_hooks() -> bool:
    """Whether hooks for saved tensors are in force here, which torch.func's transforms refuse."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def node_in_backward() -> Any:
    """The node of autograd's graph that runs in this thread, with what it saved as ``_saved_...``; or None."""
    return torch._C._current_autograd_node()


def without_transforms(tensor: Tensor) -> Tensor:
    """The tensor with all its numbers, batches among its dimensions, that transforms of ``torch.func`` have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_hooked(module: torch.nn.Module) -> bool:
    """Whether a call of the module runs more than its class's ``forward``."""
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    of_all: Callable[[], Any] = torch.nn.modules.module._has_any_global_hook
    return bool(own or "forward" in module.__dict__ or of_all())


def is_fake(tensors: Sequence[Tensor]) -> bool:
    """Whether the tensors are fake ones: an op is being traced, not run."""
    return detect_fake_mode(tensors) is not None


def when_missed(namespace: str, register: Callable[[], bool]) -> None:
    """Makes ``torch.ops.<namespace>`` call ``register`` for what it does not have, until that says that it is done."""
    ops: Any = getattr(torch.ops, namespace)
    # in this order: whoever looks up meanwhile finds what the class asks for
    ops.__dict__["_register"] = register
    ops.__class__ = _UnregisteredOps


class _UnregisteredOps(_OpNamespace):
    """A namespace that fills on demand, and is one of torch's own from then on."""

    # an op is saved by its module's name, which is that of its namespace's class
    __module__ = _OpNamespace.__module__

    @as_written
    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # Python, pickle and TorchScript ask any module for names like these
            if name.startswith("_"):
                raise
        if self._register():
            object.__setattr__(self, "__class__", _OpNamespace)
        return _OpNamespace.__getattr__(self, name)
