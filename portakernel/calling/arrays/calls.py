"""A call with arrays: whose they are, what is refused, the same call with tensors, the results handed back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from portakernel.calling.arguments import Arguments, complaint
from portakernel.calling.arrays.copies import CopyCounter
from portakernel.calling.arrays.cupy_arrays import CuPyArrays
from portakernel.calling.arrays.devices import torch_device
from portakernel.calling.arrays.jax_arrays import JaxArrays, is_traced
from portakernel.calling.arrays.libraries import PAIRS, Library, described
from portakernel.calling.arrays.numpy_arrays import NumPyArrays
from portakernel.calling.arrays.streams import Queue, Streams, TorchStreams
from portakernel.calling.arrays.transformed import TransformedCalls
from portakernel.calling.observers import public_call, tell_process
from portakernel.claims.request import Phase
from portakernel.contract.near_misses import NOT_GIVEN
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.words.dtypes import DTYPES

LIBRARIES: tuple[Library, ...] = (NumPyArrays(), JaxArrays(), CuPyArrays())
_STREAMS = TorchStreams()


def library_of(argument: object) -> Library | None:
    """The library that an argument is an array of; None for tensors, and for all else."""
    return next((library for library in LIBRARIES if library.owns(argument)), None)


def some_are_arrays(arguments: Sequence[object], out: object = None) -> bool:
    """Whether any argument, or part of ``out``, is an array of another library than torch."""
    outs = out if isinstance(out, (tuple, list)) else (out,)
    return any(
        argument is not None and not isinstance(argument, Tensor) and library_of(argument) is not None
        for argument in (*arguments, *outs)
    )


class ArrayCalls:
    """One op's calls with arrays; ``call`` is its public function, which each goes through once more with tensors."""

    def __init__(self, arguments: Arguments, call: Callable[..., Any], streams: Streams = _STREAMS) -> None:
        self.contract = arguments.contract
        self.copies = CopyCounter(self.contract.op)
        self._arguments, self._call, self._streams = arguments, call, streams
        self._names = self.contract.names
        self._positional = [tensor.name for tensor in self.contract.tensors if not tensor.keyword]
        self._transformed = TransformedCalls(arguments, self.counted, self.copies)

    def serve(
        self, tensors: Sequence[Any], values: Sequence[Any], out: Any, kernel: object, copy: bool | None = None
    ) -> Any:
        """The op's results as arrays of the library that the arguments are of; ``out`` itself where it is given.

        Raises:
            ArgumentTypeError: arguments are of several libraries, or no arrays.
            ArgumentValueError: one cannot be handed over, or not be written; with ``copy=False``: one was copied.
        """
        given = {name: array for name, array in zip(self._names, tensors, strict=True) if array is not None}
        outs = self._outs(out)
        library = self._library(tensors, outs)
        self._check_results(library, values)
        self._check_written(library, given, outs)
        if any(map(is_traced, given.values())):
            if copy is False:
                text = f"{self.contract.op}: copy=False cannot be kept inside of jax.jit, jax.grad and the like"
                raise ArgumentValueError(f"{text}, where JAX copies as it sees fit; leave it away there")
            return self._transformed(given, values, kernel)
        queue = self._queue(library, {**given, **outs})
        with self._streams.working_on(queue):
            arrays = self._taken(library, {**given, **outs}, queue, copy)
            passed = {name: arrays[name] for name in given}
            targets = tuple(arrays[name] for name in outs)
            into = None if out is None else targets[0] if not isinstance(out, (tuple, list)) else targets
            returned = self.counted(passed, values, kernel, into)
            if library.holds(queue):
                self._streams.keep(queue, tuple(arrays.values()))
            return self._handed_back(library, returned, values, copy) if out is None else out

    def otherwise(
        self,
        tensors: Sequence[Any],
        parameters: Sequence[Any],
        out: Any,
        kernel: object,
        unknown: Mapping[str, Any],
        third: object,
    ) -> Any:
        """A public call with ``unknown`` arguments, of which ``copy`` alone means something; to tensors, nothing.

        Raises:
            ArgumentTypeError: there are others, or too many by position, or ``copy`` is neither False nor None.
        """
        others = {name: value for name, value in unknown.items() if name != "copy"}
        if others or third is not ...:
            self._arguments.refuse(others, third)
        copy = unknown["copy"]
        if copy is not None and copy is not False:
            text = "copy is None (what DLPack copies is counted) or False (it is an error)"
            raise ArgumentTypeError(f"{self.contract.op}: {text}; this is {copy!r}")
        if some_are_arrays(tensors, out):
            return self.serve(tensors, self._arguments.canonical(parameters), out, kernel, copy)
        return self.on_tensors(tensors, parameters, out, kernel)

    def refuse(self, arguments: Sequence[Any]) -> None:
        """Nothing, when no argument is an array, for what takes tensors alone.

        Raises:
            ArgumentTypeError: one is; says how it becomes a tensor.
        """
        arrays = [name for name, each in zip(self._names, arguments, strict=True) if some_are_arrays([each])]
        if arrays:
            made = " and ".join(f"torch.from_dlpack({name})" for name in arrays)
            text = f"{self.contract.op}: a bound handle takes tensors: to convert arrays would cost more than it spares"
            raise ArgumentTypeError(f"{text}; bind with {made}, made once, and call it with such")

    def tensors(self, tensors: list[Any]) -> list[Any]:
        """A call's arguments, arrays as tensors on their memory, for whoever asks about a call without making it.

        Raises:
            ArgumentTypeError, ArgumentValueError: as ``serve``; or one has no memory, inside of a transformation.
        """
        if not some_are_arrays(tensors):
            return tensors
        library = self._library(tensors, {})
        given = {name: array for name, array in zip(self._names, tensors, strict=True) if array is not None}
        for name, array in given.items():
            if is_traced(array):
                text = f"{self.contract.op}: {name} is traced by JAX and has no memory yet"
                raise ArgumentValueError(f"{text}; ask outside of jax.jit, or in words (dtype= and shape=)")
        queue = self._queue(library, given)
        with self._streams.working_on(queue):
            made = self._taken(library, given, queue, None)
        return [made.get(name) for name in self._names]

    def counted(
        self, tensors: Mapping[str, Tensor], values: Sequence[Any], kernel: object = None, out: Any = None
    ) -> Any:
        """The public call with tensors; the process's record counts it as theirs."""
        row = [tensors.get(name) for name in self._names]
        with public_call(self.contract.op) as under_way:
            returned = self.on_tensors(row, values, out, kernel)
        if not under_way.is_counted:
            recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values())
            tell_process(self.contract, row, values, phase=Phase.TRAINING if recorded else Phase.INFERENCE)
        return returned

    def on_tensors(self, tensors: Sequence[Any], values: Sequence[Any], out: Any, kernel: object) -> Any:
        """The public call with these tensors and values, each in the contract's order."""
        given = dict(zip(self._names, tensors, strict=True))
        by_position = [given.pop(name) for name in self._positional]
        written = {"out": out} if self.contract.outputs else {}
        return self._call(*by_position, **given, **self._arguments.named(values), **written, kernel=kernel)

    def _outs(self, out: Any) -> dict[str, Any]:
        """The parts of ``out`` by the words that messages have for them."""
        if out is None:
            return {}
        if not isinstance(out, (tuple, list)):
            return {"out": out}
        return {f"out[{place}]": part for place, part in enumerate(out)}

    def _library(self, tensors: Sequence[Any], outs: Mapping[str, Any]) -> Library:
        """The one library of all arguments."""
        known = dict[str, Library | None]()
        for tensor, argument in zip(self.contract.tensors, tensors, strict=True):
            if argument is None and tensor.optional:
                continue
            library = library_of(argument)
            if library is None and not isinstance(argument, Tensor):
                self._refuse_no_array(tensor.name, argument, tensors)
            known[tensor.name] = library
        known |= {name: library_of(part) for name, part in outs.items()}
        kinds = set(known.values())
        if len(kinds) == 1 and (library := kinds.pop()) is not None:
            return library
        arguments = {**dict(zip(self._names, tensors, strict=True)), **outs}
        listed = ", ".join(f"{name} is {described(arguments[name])}" for name in known)
        first = next(iter(known.values()))
        maker = "torch.from_dlpack" if first is None else first.maker
        others = [name for name, library in known.items() if library is not first]
        made = " and ".join(f"{maker}({name})" for name in others)
        text = f"{self.contract.op}: arguments of several kinds: {listed}; the result is of the caller's kind"
        raise ArgumentTypeError(f"{text}, so give all of one, as by {made}")

    def _refuse_no_array(self, name: str, argument: object, tensors: Sequence[Any]) -> NoReturn:
        tensor = self.contract.tensor(name)
        if argument is None or argument is NOT_GIVEN:
            raise ArgumentTypeError(f"{self.contract.op}: {complaint(self.contract, tensor, argument)}")
        other, array = next(
            (known, value) for known, value in zip(self._names, tensors, strict=True) if library_of(value) is not None
        )
        text = f"{self.contract.op}: {name} must be {described(array)}, as {other} is; this is {described(argument)}"
        raise ArgumentTypeError(text)

    def _check_results(self, library: Library, values: Sequence[Any]) -> None:
        """Nothing, when each result can be an array of the library, whose dtypes may be fewer than torch's."""
        named, made = self._arguments.named(values), self._arguments.at(values)
        for result in made.outputs:
            dtypes = [word for word in (named.get(str(result.dtype)), result.dtype) if word in DTYPES]
            for dtype, remedy in library.missing(map(str, dtypes[:1])).items():
                text = f"{self.contract.op}: {result.name} is {dtype}, which {library.name}'s arrays cannot be now"
                ask = self._narrower(result.name, dtype)
                raise ArgumentValueError(f"{text}; {remedy}{ask}")

    def _narrower(self, result: str, dtype: str) -> str:
        """A clause on how to ask for 32 bits, where a parameter of the op says what a result is."""
        narrow = dtype.replace("64", "32")
        declared = next(output.dtype for output in self.contract.outputs if output.name == result)
        holder = next((parameter for parameter in self.contract.parameters if parameter.name == declared), None)
        can = holder is not None and narrow != dtype and narrow in holder.choices
        return "" if holder is None or not can else f", or ask for {holder.name}={narrow!r}"

    def _check_written(self, library: Library, given: Mapping[str, Any], outs: Mapping[str, Any]) -> None:
        """Nothing, when what the op writes may be written."""
        written = {name: given[name] for name in self.contract.mutated if name in given}
        for name, array in {**written, **outs}.items():
            if fixed := library.fixed(array, name):
                use = "is written in place" if name in written else "is to be written"
                leave = f"; or leave {name.partition('[')[0]}= away" if name in outs else ""
                raise ArgumentValueError(f"{self.contract.op}: {name} {use}, but {fixed}{leave}")

    def _queue(self, library: Library, arrays: Mapping[str, Any]) -> Queue:
        """Where a call on these arrays is queued, when all can be handed over and lie on one device."""
        op, devices = self.contract.op, dict[str, torch.device]()
        for name, array in arrays.items():
            if refusal := library.refusal(array, name):
                raise ArgumentValueError(f"{op}: {name} {refusal}")
            if (dtype := library.dtype(array)) not in DTYPES:
                accepted = self.contract.possible_dtypes(name) if name in self._names else ()
                told = f"; accepted: {', '.join(accepted)}" if accepted else ""
                raise ArgumentTypeError(f"{op}: {name} has dtype {dtype}, which no op takes{told}")
            devices[name] = torch_device(op, name, array, self._arguments.registry)
        first, *_ = devices
        for name, device in devices.items():
            if device != devices[first]:
                text = f"{op}: {name} is on {device}, but {first} is on {devices[first]}; move them to one device"
                raise ArgumentValueError(text)
        return library.queue(devices[first], self._streams)

    def _taken(self, library: Library, arrays: Mapping[str, Any], queue: Queue, copy: bool | None) -> dict[str, Tensor]:
        """The tensors on the arrays' memory, which may be read on the queue."""
        taken = dict[str, Tensor]()
        for name, array in arrays.items():
            tensor = self._one_taken(library, name, array, queue)
            taken[name] = self._in_pairs(name, tensor)
            if tensor.numel() and library.address(array) != tensor.data_ptr():
                if name not in self._names or name in self.contract.mutated:
                    text = f"{self.contract.op}: {name} is to be written, but {library.name} gives a copy of it away"
                    raise ArgumentValueError(f"{text}, which nobody would see; give memory that it shares")
                self._count_copy(library, name, tensor, copy)
        return taken

    def _one_taken(self, library: Library, name: str, array: Any, queue: Queue) -> Tensor:
        try:
            return library.taken(array, queue)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            text = f"{self.contract.op}: {library.name} does not give {name} away by DLPack: {error}"
            raise ArgumentValueError(text) from error

    def _in_pairs(self, name: str, tensor: Tensor) -> Tensor:
        """Bytes as the pairs of four bits that they are, where the op takes such and no bytes."""
        if tensor.dtype is not torch.uint8 or name not in self._names:
            return tensor
        dtypes = self.contract.possible_dtypes(name)
        return tensor.view(getattr(torch, PAIRS)) if PAIRS in dtypes and "uint8" not in dtypes else tensor

    def _handed_back(self, library: Library, returned: Any, values: Sequence[Any], copy: bool | None) -> Any:
        """What a call returned, in its form, as arrays."""
        if not isinstance(returned, (tuple, list)):
            return None if returned is None else self._one_back(library, returned, 0, values, copy)
        return tuple(self._one_back(library, tensor, place, values, copy) for place, tensor in enumerate(returned))

    def _one_back(self, library: Library, tensor: Tensor, place: int, values: Sequence[Any], copy: bool | None) -> Any:
        array = library.given_back(tensor)
        if tensor.numel() and library.address(array) != tensor.data_ptr():
            name = self._arguments.at(values).outputs[place].name
            self._count_copy(library, name, tensor, copy)
        return array

    def _count_copy(self, library: Library, name: str, tensor: Tensor, copy: bool | None) -> None:
        if copy is False:
            text = f"{self.contract.op}: copy=False, but {name} ({tensor.nbytes} bytes) was copied by {library.name}"
            raise ArgumentValueError(f"{text}: its memory is not aligned, or ordered, as {library.name} asks")
        self.copies.add(name, library.name, tensor.nbytes)
