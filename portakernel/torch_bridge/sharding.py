"""DTensors: a call on tensors that are split over a device mesh, made on each rank's part of them.

The rule of ``sharding_rules`` says what may be split. Arguments are brought to placements that the rule admits, the op
is called on the local tensors, with autograd, kernels and policy as for any call, and the results become DTensors. So
every decision is made on what a rank really holds, and saved tensors, whose rows are flat and therefore have no
placement that DTensor could name, stay local.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from portakernel.calling.arguments import Tensors
from portakernel.calling.caller import OpCaller
from portakernel.errors import ArgumentTypeError, ArgumentValueError, DerivativeError, RedistributionWarning
from portakernel.host.call_site import callers_level
from portakernel.host.locks import make_lock
from portakernel.tensors.torch_internals import (
    dtensors_lose_second_derivatives,
    innermost_transform,
    some_are_distributed,
)
from portakernel.torch_bridge.sharding_rules import Axis, axes
from portakernel.torch_bridge.signature import Signature

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement


class Sharding:
    """One op's calls on DTensors."""

    def __init__(self, caller: OpCaller, signature: Signature) -> None:
        self.caller = caller
        self.contract = caller.contract
        self.signature = signature
        self._warned: set[tuple[str, object, object]] = set()
        self._lock = make_lock()

    def applying(self, tensors: Sequence[Any]) -> Callable[..., Any] | None:
        """``call``, where one of the tensors is a DTensor."""
        return self.call if some_are_distributed(tensors) else None

    def call(self, *arguments: Any) -> Any:
        """The torch op on DTensors: as on the whole tensors, each rank with its part.

        Raises:
            ArgumentTypeError: some tensors are DTensors and some are not.
            ArgumentValueError: shapes do not fit together, meshes differ, or this process is outside the mesh.
        """
        tensors, values, (kernel,) = self.signature.public(arguments)
        given: Mapping[str, Any] = self.caller.arguments.given(tensors)
        mesh = self._mesh(given)
        contract = self.caller.arguments.at(values)
        forms = self.caller.arguments.results(tensors, values)
        fixed = {tensor.name: len(tensor.fixed) for tensor in contract.tensors if tensor.leading is not None}
        leading = next((given[name].ndim - count for name, count in fixed.items() if name in given), 0)
        # a registered mask may ask which batch or head it is, which a part of them could not say
        whole = any(
            p.kind == "mask" and v not in p.possible() for p, v in zip(contract.parameters, values, strict=True)
        )
        possible = () if whole else axes(contract, leading, given)
        split = self._split(possible, tensors, mesh)
        local = [
            None if tensor is None else self._local(place, tensor, split, possible)
            for place, tensor in enumerate(tensors)
        ]
        returned = self.caller.torch_op()(*local, *values, kernel)
        results = returned if isinstance(returned, tuple) else (returned,)
        made = {output.name: place for place, output in enumerate(contract.outputs)}
        # of a result that does not exist in this call, the torch op returns an empty tensor
        wrapped = tuple(
            _distributed(result, mesh, _results_placements(split, made[output.name]), forms[output.name][0])
            if output.name in made
            else result
            for output, result in zip(self.contract.outputs, results, strict=True)
        )
        return wrapped if isinstance(returned, tuple) else wrapped[0]

    def _mesh(self, given: Mapping[str, Any]) -> DeviceMesh:
        from torch.distributed.tensor import DTensor

        op = self.contract.op
        if innermost_transform() is not None:
            raise ArgumentTypeError(
                f"{op}: DTensors do not go through torch.func's transforms; transform a function of the local tensors"
                f" (to_local()), or use autograd"
            )
        first = next(name for name, tensor in given.items() if isinstance(tensor, DTensor))
        plain = [name for name, tensor in given.items() if not isinstance(tensor, DTensor)]
        if plain:
            raise ArgumentTypeError(
                f"{op}: {first} is a DTensor, and {' and '.join(plain)} {'is' if len(plain) == 1 else 'are'} not; pass"
                f" all tensors as DTensors (a tensor that every rank holds whole: DTensor.from_local({plain[0]}, mesh,"
                f" [Replicate()])), or none (to_local())"
            )
        mesh: DeviceMesh = given[first].device_mesh
        for name, tensor in given.items():
            if tensor.device_mesh != mesh:
                raise ArgumentValueError(
                    f"{op}: {name} is on {tensor.device_mesh}, but {first} is on {mesh}; distribute them over one mesh"
                )
        if mesh.get_coordinate() is None:
            raise ArgumentValueError(
                f"{op}: this process is outside the mesh {mesh} of its arguments; call it on the mesh's ranks alone"
            )
        return mesh

    def _split(self, possible: Sequence[Axis], tensors: Sequence[Any], mesh: DeviceMesh) -> list[Axis | None]:
        """Along what each dimension of the mesh splits the call: as the first argument that can be split so is."""
        split: list[Axis | None] = []
        for dim in range(mesh.ndim):
            wishes = (self._wish(possible, place, tensor, dim) for place, tensor in enumerate(tensors))
            admitted = (axis for axis in wishes if axis is not None and _divides(axis, [*split, axis], tensors, mesh))
            split.append(next(admitted, None))
        return split

    def _wish(self, possible: Sequence[Axis], place: int, tensor: Any, dim: int) -> Axis | None:
        from torch.distributed.tensor import Shard

        if tensor is None or not isinstance(placement := tensor.placements[dim], Shard):
            return None
        return next((axis for axis in possible if _dim(axis.arguments[place], tensor.ndim) == placement.dim), None)

    def _local(self, place: int, tensor: Any, split: Sequence[Axis | None], possible: Sequence[Axis]) -> Tensor:
        """This rank's part of an argument, whose gradient is placed as the split says."""
        from torch.distributed.tensor import Partial, Replicate, Shard

        wanted: list[Placement] = []
        gradient: list[Placement] = []
        for axis in split:
            dim = _dim(axis.arguments[place], tensor.ndim) if axis is not None else None
            wanted.append(Replicate() if dim is None else Shard(dim))
            # each rank's share of the rows adds its own to what all ranks hold
            gradient.append(Shard(dim) if dim is not None else Replicate() if axis is None else Partial("sum"))
        if tuple(tensor.placements) != tuple(wanted):
            self._warn_of_exchange(place, tensor, tuple(wanted), possible)
            tensor = self._redistributed(self.contract.names[place], tensor, wanted)
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return cast(Tensor, tensor.to_local())
        local: Tensor = tensor.to_local(grad_placements=gradient)
        local.register_hook(_returning(self.contract.op, torch.empty_like(local, device="meta").stride()))
        return local

    def _redistributed(self, name: str, tensor: Any, wanted: Sequence[Placement]) -> Any:
        if not (tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point):
            return tensor.redistribute(placements=wanted)
        if any(placement.is_partial() for placement in tensor.placements):
            raise ArgumentValueError(
                f"{self.contract.op}: {name} is {tensor.dtype} and Partial, and that dtype has no sum;"
                f" redistribute what it was made from"
            )
        # collectives do not know all of these dtypes, and every one of them knows bytes
        mesh, shape = tensor.device_mesh, tuple(tensor.shape)
        held = _distributed(tensor.to_local().view(torch.uint8), mesh, tensor.placements, shape)
        moved = held.redistribute(placements=wanted).to_local().view(tensor.dtype)
        return _distributed(moved, mesh, wanted, shape)

    def _warn_of_exchange(
        self, place: int, tensor: Any, wanted: tuple[Placement, ...], possible: Sequence[Axis]
    ) -> None:
        """Warns once of shards that every such call has to exchange between ranks.

        To sum what is partial is no news, because no rank holds the numbers before; to take a part of what is whole
        costs nothing.
        """
        pairs = zip(tensor.placements, wanted, strict=True)
        if all(held == needed or held.is_partial() or held.is_replicate() for held, needed in pairs):
            return
        op, name = self.contract.op, self.contract.names[place]
        held = tuple(tensor.placements)
        with self._lock:
            if (name, held, wanted) in self._warned:
                return
            self._warned.add((name, held, wanted))
        dims = {_dim(axis.arguments[place], tensor.ndim): axis.even for axis in possible}
        listed = [
            f"{dim}{' (in even parts)' if even else ''}"
            for dim, even in sorted(dims.items(), key=str)
            if dim is not None
        ]
        along = f"{name} can be split along dimension {' or '.join(listed)}" if listed else f"{name} has to be whole"
        warnings.warn(
            f"{op}: {name} is placed {held}, and each such call redistributes it to {wanted}: here {along};"
            " place it so before the call, where that costs least",
            RedistributionWarning,
            stacklevel=callers_level(),
        )


def _returning(op: str, strides: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """A hook that gives a part's gradient these strides, on its way to the DTensor.

    Autograd copies a gradient whose strides are not its argument's, and of a DTensor the copy is an exchange between
    ranks (torch 2.11), in which a rank with an empty part, whose strides are never wrong, does not take part.

    Raises (from the hook):
        DerivativeError: the gradient is to be differentiated, which this torch forgets.
    """

    def hook(gradient: Tensor) -> Tensor:
        if dtensors_lose_second_derivatives and torch.is_grad_enabled():
            raise DerivativeError(
                f"{op}: torch {torch.__version__} loses the second derivatives of DTensors (they come out None), and"
                " create_graph=True asks for them; torch 2.13 has them, and so do the local tensors (to_local())"
            )
        if gradient.stride() == strides:
            return gradient
        return gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)

    return hook


def _divides(axis: Axis, split: Sequence[Axis | None], tensors: Tensors, mesh: DeviceMesh) -> bool:
    """Whether parts along ``axis`` are even, or need not be."""
    if not axis.even:
        return True
    ranks = math.prod(mesh.size(dim) for dim, other in enumerate(split) if other == axis)
    pairs = zip(tensors, axis.arguments, strict=True)
    return all(tensor.shape[place] % ranks == 0 for tensor, place in pairs if tensor is not None and place is not None)


def _dim(place: int | None, rank: int) -> int | None:
    return None if place is None else place % rank


def _results_placements(split: Sequence[Axis | None], place: int) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate() if axis is None else Shard(axis.outputs[place]) for axis in split]


def _distributed(local: Tensor, mesh: DeviceMesh, placements: Sequence[Any], shape: tuple[int, ...]) -> DTensor:
    """``local`` as this rank's part of a DTensor of ``shape``, which does not follow from uneven shares."""
    from torch.distributed.tensor import DTensor

    size = torch.Size(shape)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=size, stride=_strides(shape, local))


def _strides(shape: tuple[int, ...], local: Tensor) -> tuple[int, ...]:
    """The strides of a dense tensor of ``shape`` with its dimensions in the order that they have in ``local``."""
    strides, step = [0] * len(shape), 1
    # among equal strides the later dimension is the inner one
    for dim in sorted(range(len(shape)), key=lambda dim: (local.stride(dim), -dim)):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)
