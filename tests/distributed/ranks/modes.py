"""DTensors in each mode of the page: whether it works, with the right numbers, or what refuses it."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from model import fsdp_differences
from torch import Tensor
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate, Shard, init_device_mesh
from trial import spread

import portakernel
from portakernel import ops


class Modes:
    """One way to call each; a method returns a DTensor or tensor and what it should be."""

    def __init__(self, mesh: DeviceMesh) -> None:
        generator = torch.Generator().manual_seed(3)
        device = mesh.device_type
        self.mesh = mesh
        self.rows = torch.randn(5, 3, 8, generator=generator).to(device)
        self.scale = torch.randn(8, generator=generator).to(device)
        self.matrix = torch.randn(6, 8, generator=generator).to(device)
        self.x = spread(self.rows, mesh, [Shard(0)])
        self.w = spread(self.scale, mesh, [Replicate()])

    def gradients(self) -> tuple[Any, Any]:
        x, w = self.x.detach().requires_grad_(), self.w.detach().requires_grad_()
        rows, scale = self.rows.clone().requires_grad_(), self.scale.clone().requires_grad_()
        ops.rms_norm(x, w).square().sum().backward()
        ops.rms_norm(rows, scale).square().sum().backward()
        assert w.grad is not None
        assert w.grad.placements == (Partial("sum"),)
        return (x.grad, w.grad), (rows.grad, scale.grad)

    def inference_mode(self) -> tuple[Any, Any]:
        with torch.inference_mode():
            return ops.rms_norm(self.x, self.w), ops.rms_norm(self.rows, self.scale)

    def torch_ops_in_inference_mode(self) -> None:
        with torch.inference_mode():
            torch.ops.portakernel.rms_norm(self.x, self.w)

    def out(self) -> tuple[Any, Any]:
        results = []
        for placement in (Shard(0), Shard(1), Replicate()):
            held = spread(torch.zeros_like(self.rows), self.mesh, [placement])
            assert ops.rms_norm(self.x, self.w, out=held) is held
            assert held.placements == (placement,)
            results.append(held)
        return tuple(results), (ops.rms_norm(self.rows, self.scale),) * 3

    def kernel(self) -> tuple[Any, Any]:
        before = _calls("reference.rms_norm")
        found = ops.rms_norm(self.x, self.w, kernel="reference.rms_norm")
        assert _calls("reference.rms_norm") == before + 1
        return found, ops.rms_norm(self.rows, self.scale)

    def autocast(self) -> tuple[Any, Any]:
        matrix = spread(self.matrix, self.mesh, [Replicate()])
        with torch.autocast(self.mesh.device_type, dtype=torch.bfloat16):
            found, right = ops.linear_act(self.x, matrix), ops.linear_act(self.rows, self.matrix)
        assert found.dtype == torch.bfloat16
        return found, right

    def torch_compile(self) -> tuple[Any, Any]:
        def twice(x: Tensor, w: Tensor) -> Tensor:
            return ops.rms_norm(x, w) * 2

        x, w = self.x.detach().requires_grad_(), self.w.detach().requires_grad_()
        rows, scale = self.rows.clone().requires_grad_(), self.scale.clone().requires_grad_()
        found = torch.compile(twice, fullgraph=True, backend="aot_eager")(x, w)
        found.square().sum().backward()
        twice(rows, scale).square().sum().backward()
        return (found, x.grad, w.grad), (twice(self.rows, self.scale), rows.grad, scale.grad)

    def fsdp2(self) -> tuple[Any, Any]:
        assert fsdp_differences(self.mesh) == []
        assert fsdp_differences(self.mesh, mixed=True) == []
        return (), ()

    def fsdp2_compiled(self) -> tuple[Any, Any]:
        before = _graphs()
        assert fsdp_differences(self.mesh, compiled=True) == []
        portakernel.set_policy(compiled="call")
        try:
            assert fsdp_differences(self.mesh, compiled=True) == []
        finally:
            portakernel.set_policy()
        assert _graphs() >= before + 4  # of two modules, twice
        return (), ()

    def second_derivatives(self) -> tuple[Any, Any]:
        found = []
        for x, w in ((self.x, self.w), (self.rows, self.scale)):
            leaves = (x.detach().requires_grad_(), w.detach().requires_grad_())
            first = torch.autograd.grad(ops.rms_norm(*leaves).square().sum(), leaves, create_graph=True)
            sum(gradient.square().sum() for gradient in first).backward()
            found.append(tuple(leaf.grad for leaf in leaves))
        return found[0], found[1]

    def torch_func(self) -> None:
        torch.func.grad(lambda x: ops.rms_norm(x, self.w).sum())(self.x)

    def dtensors_beside_plain_tensors(self) -> None:
        ops.rms_norm(self.x, self.scale)

    def two_meshes(self) -> None:
        other = init_device_mesh(self.mesh.device_type, (1, self.mesh.size()), mesh_dim_names=("one", "all"))
        ops.rms_norm(self.x, spread(self.scale, other, [Replicate(), Replicate()]))

    def outside_the_mesh(self) -> None:
        # each rank is outside the other's mesh; both take part in making both
        alone = [DeviceMesh(self.mesh.device_type, [rank]) for rank in range(self.mesh.size())]
        other = alone[1 - self.mesh.get_local_rank()]
        ops.rms_norm(spread(self.rows, other, [Shard(0)]), spread(self.scale, other, [Replicate()]))

    def partial_float8(self) -> None:
        q, scale = ops.quantize_fp8(self.rows)
        partial = DTensor.from_local(q, self.mesh, [Partial()], run_check=False)
        ops.dequantize(partial, spread(scale, self.mesh, [Replicate()]))

    def explain(self) -> None:
        portakernel.explain("rms_norm", self.x, self.w)

    def bind(self) -> None:
        portakernel.bind("rms_norm", self.x, self.w)


def records(mesh: DeviceMesh) -> dict[str, dict[str, str]]:
    """Each mode's outcome, with the error's text where it is refused."""
    made = Modes(mesh)
    names = [name for name in vars(Modes) if not name.startswith("_")]
    with warnings.catch_warnings():
        # what torch warns of in this or that version is not ours to judge
        warnings.simplefilter("ignore")
        return {name: _outcome(getattr(made, name)) for name in names}


def _outcome(call: Callable[[], Any]) -> dict[str, str]:
    try:
        returned = call()
    except Exception as error:  # noqa: BLE001 - the error is the outcome
        return {"outcome": f"refuses with {type(error).__name__}", "text": str(error)}
    if returned is None:
        return {"outcome": "works", "text": ""}
    found, right = (part if isinstance(part, tuple) else (part,) for part in returned)
    for place, (one, other) in enumerate(zip(found, right, strict=True)):
        if one is None:
            return {"outcome": "fails", "text": f"result {place} is None"}
        torch.testing.assert_close(one.full_tensor(), other)
    return {"outcome": "works", "text": ""}


def _graphs() -> int:
    count: int = importlib.import_module("torch._dynamo.utils").counters["stats"]["unique_graphs"]
    return count


def _calls(kernel: str) -> int:
    return sum(served.calls for served in portakernel.stats() if served.kernel == kernel)
