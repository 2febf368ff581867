"""Calls inside of JAX's transformations: gradients by the op's own backward, traces on a CPU by a callback."""

from __future__ import annotations

import contextvars
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arguments import Arguments
from portakernel.calling.arrays.copies import CopyCounter
from portakernel.calling.arrays.devices import torch_device
from portakernel.calling.arrays.jax_arrays import JaxArrays, is_traced
from portakernel.calling.arrays.libraries import PAIRS
from portakernel.calling.arrays.numpy_arrays import NumPyArrays
from portakernel.calling.arrays.streams import Queue, TorchStreams
from portakernel.calling.key_table import remember_few
from portakernel.errors import ArgumentTypeError, ArgumentValueError, DerivativeError
from portakernel.words.dtypes import DTYPES

_HOST = Queue(torch.device("cpu"))


class Fixed:
    """A value that a transformation carries along and does not look into."""

    def __init__(self, value: Any) -> None:
        self.value = value


class TransformedCalls:
    """One op's calls on what stands for JAX's arrays; ``call(tensors by name, values, kernel)`` makes one."""

    def __init__(self, arguments: Arguments, call: Callable[..., Any], copies: CopyCounter) -> None:
        self._arguments, self._call, self._copies = arguments, call, copies
        self._known = dict[Any, Callable[..., Any]]()

    def __call__(self, given: Mapping[str, Any], values: Sequence[Any], kernel: object) -> Any:
        """The op as a function that JAX may transform, on these arguments.

        Raises:
            ArgumentTypeError, ArgumentValueError: they do not fit the op, or are traced for a GPU.
            DerivativeError: a gradient of an op that has none.
        """
        key = (tuple(given), tuple(values), kernel)
        function = self._known.get(key)
        if function is None:
            kind = _Kind(self._arguments, self._call, self._copies, tuple(given), tuple(values), kernel)
            function = self._differentiable(kind)
            remember_few(self._known, key, function)
        return function(*given.values())

    def _differentiable(self, kind: _Kind) -> Callable[..., Any]:
        jax = sys.modules["jax"]

        def function(*arrays: Any) -> Any:
            return kind.forward(arrays)

        def forward(*primals: Any) -> Any:
            arrays = tuple(primal.value for primal in primals)
            perturbed = tuple(bool(primal.perturbed) for primal in primals)
            if any(perturbed) and kind.contract.gradient == "none":
                text = f"{kind.contract.op} has no gradient"
                raise DerivativeError(f"{text}; where none is meant, wrap its arguments: jax.lax.stop_gradient(...)")
            return kind.forward(arrays), (arrays, Fixed(perturbed))

        def backward(kept: Any, cotangents: Any) -> Any:
            arrays, perturbed = kept
            return kind.backward(arrays, perturbed.value, cotangents)

        _register_fixed()
        made = jax.custom_vjp(function)
        made.defvjp(forward, backward, symbolic_zeros=True)
        return made  # type: ignore[no-any-return]


class _Kind:
    """Calls with the same arguments given, values and kernel."""

    def __init__(
        self,
        arguments: Arguments,
        call: Callable[..., Any],
        copies: CopyCounter,
        names: tuple[str, ...],
        values: tuple[Any, ...],
        kernel: object,
    ) -> None:
        self.contract = arguments.contract
        self._arguments, self._call, self._copies = arguments, call, copies
        self._names, self._values, self._kernel = names, values, kernel
        self._jax, self._numpy, self._streams = JaxArrays(), NumPyArrays(), TorchStreams()

    def forward(self, arrays: Sequence[Any]) -> Any:
        """The results: at once, or by a callback where some array has no memory yet."""
        if not any(map(is_traced, arrays)):
            results = [result.name for result in self._arguments.at(self._values).outputs]
            return self._at_once(self._run, dict(zip(self._names, arrays, strict=True)), results)
        self._check_traced(arrays)
        forms = self._arguments.results(self._stand_ins(arrays), self._values)
        shapes = [_shape(shape, dtype) for shape, dtype in forms.values()]
        found = self._by_callback(self._run, shapes, arrays)
        return found[0] if len(found) == 1 else found

    def backward(self, arrays: Sequence[Any], perturbed: Sequence[bool], cotangents: Any) -> tuple[Any, ...]:
        """The gradient of each argument, None of those for which none is asked."""
        jax = sys.modules["jax"]
        given = cotangents if isinstance(cotangents, (tuple, list)) else (cotangents,)
        present = [place for place, grad in enumerate(given) if _is_there(grad)]
        asked = [place for place, wanted in enumerate(perturbed) if wanted]
        grads = [given[place] for place in present]

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            inputs, outer = tensors[: len(arrays)], tensors[len(arrays) :]
            return self._gradients(inputs, asked, dict(zip(present, outer, strict=True)))

        every = [*arrays, *grads]
        if not any(map(is_traced, every)):
            of_results = (f"the gradient of result {place}" for place in present)
            named = dict(zip([*self._names, *of_results], every, strict=True))
            made = self._at_once(run, named, [f"grad_{self._names[place]}" for place in asked])
        else:
            shapes = [jax.ShapeDtypeStruct(arrays[place].shape, arrays[place].dtype) for place in asked]
            made = self._by_callback(run, shapes, every)
        by_place = dict(zip(asked, made, strict=True))
        return tuple(by_place.get(place) for place in range(len(arrays)))

    def _run(self, *tensors: Tensor) -> Any:
        named = {name: self._named(name, tensor) for name, tensor in zip(self._names, tensors, strict=True)}
        return self._call(named, self._values, self._kernel)

    def _named(self, name: str, tensor: Tensor) -> Tensor:
        pairs = PAIRS in (dtypes := self.contract.possible_dtypes(name)) and "uint8" not in dtypes
        return tensor.view(getattr(torch, PAIRS)) if pairs and tensor.dtype is torch.uint8 else tensor

    def _gradients(
        self, tensors: Sequence[Tensor], asked: Sequence[int], grads: Mapping[int, Tensor]
    ) -> tuple[Tensor, ...]:
        """The gradients of the asked arguments, by the op's own backward after its forward, which is run once more."""
        leaves = [tensor.detach().requires_grad_(place in asked) for place, tensor in enumerate(tensors)]
        with torch.enable_grad():
            returned = self._run(*leaves)
        results = returned if isinstance(returned, tuple) else (returned,)
        recorded = [place for place in grads if results[place].requires_grad]
        wanted = [leaves[place] for place in asked]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if recorded:
            outer = [grads[place].to(results[place].dtype) for place in recorded]
            ends = [results[place] for place in recorded]
            found = torch.autograd.grad(ends, wanted, outer, allow_unused=True)
        pairs = zip(wanted, found, strict=True)
        return tuple(torch.zeros_like(leaf) if grad is None else grad.contiguous() for leaf, grad in pairs)

    def _at_once(self, run: Callable[..., Any], arrays: Mapping[str, Any], results: Sequence[str]) -> Any:
        """``run`` on the arrays' memory, its ``results``, by name, as arrays of JAX."""
        op = self.contract.op
        for name, array in arrays.items():
            if refusal := self._jax.refusal(array, name):
                raise ArgumentValueError(f"{op}: {name} {refusal}")
        device = torch_device(op, self._names[0], arrays[self._names[0]], self._arguments.registry)
        queue = self._jax.queue(device, self._streams)
        with self._streams.working_on(queue):
            tensors = [self._jax.taken(array, queue) for array in arrays.values()]
            returned = run(*tensors)
            self._streams.keep(queue, tensors)
            if isinstance(returned, tuple):
                return tuple(map(self._given_back, returned, results))
            return self._given_back(returned, results[0])

    def _given_back(self, tensor: Tensor, name: str) -> Any:
        array = self._jax.given_back(tensor)
        if tensor.numel() and self._jax.address(array) != tensor.data_ptr():
            self._copies.add(name, self._jax.name, tensor.nbytes)
        return array

    def _by_callback(self, run: Callable[..., Any], shapes: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """``run`` when the traced program runs, on a CPU, under the policy of the trace.

        JAX runs it in a thread of its own, which knows nothing of the caller's policy blocks.
        """
        jax, numpy, context = sys.modules["jax"], sys.modules["numpy"], contextvars.copy_context()

        def host(*given: Any) -> Any:
            tensors = [self._numpy.taken(numpy.asarray(array), _HOST) for array in given]
            returned = context.copy().run(run, *tensors)
            results = returned if isinstance(returned, tuple) else (returned,)
            return tuple(self._numpy.given_back(tensor.detach()) for tensor in results)

        return jax.pure_callback(host, tuple(shapes), *arrays, vmap_method="sequential")

    def _stand_ins(self, arrays: Sequence[Any]) -> list[Tensor | None]:
        """Tensors of the arrays' shapes and dtypes, without memory, in the contract's order."""
        made = dict[str, Tensor]()
        for name, array in zip(self._names, arrays, strict=True):
            tensor = torch.empty(array.shape, dtype=getattr(torch, str(array.dtype)), device="meta")
            made[name] = self._named(name, tensor)
        return [made.get(name) for name in self.contract.names]

    def _check_traced(self, arrays: Sequence[Any]) -> None:
        """Nothing, when the arguments fit the op, and the program will run on a CPU."""
        jax, op = sys.modules["jax"], self.contract.op
        chosen = jax.config.jax_default_device
        platform = chosen if isinstance(chosen, str) else getattr(chosen, "platform", None) or jax.default_backend()
        if platform != "cpu":
            text = (
                f"{op}: traced by JAX for {platform}, where a kernel inside of jax.jit needs an FFI target of its own"
            )
            raise ArgumentValueError(f"{text}, which portakernel has not; call it outside of jax.jit")
        for name, array in zip(self._names, arrays, strict=True):
            if str(array.dtype) not in DTYPES:
                accepted = ", ".join(self.contract.possible_dtypes(name))
                raise ArgumentTypeError(
                    f"{op}: {name} has dtype {array.dtype}, which no op takes; accepted: {accepted}"
                )
        self._arguments.check(self._stand_ins(arrays), self._values)


def _is_there(cotangent: Any) -> bool:
    """Whether a result's gradient is there: neither known to be zero, nor that of whole numbers."""
    jax = sys.modules["jax"]
    if isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return False
    return bool(getattr(cotangent, "dtype", None) != jax.dtypes.float0)


def _shape(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    jax, name = sys.modules["jax"], str(dtype).removeprefix("torch.")
    return jax.ShapeDtypeStruct(shape, jax.numpy.dtype("uint8" if name == PAIRS else name))


@functools.cache
def _register_fixed() -> None:
    """Has JAX carry ``Fixed`` along as what a program is made for, and not as numbers in it."""
    tree = sys.modules["jax"].tree_util
    tree.register_pytree_node(Fixed, lambda kept: ((), kept.value), lambda value, _: Fixed(value))
