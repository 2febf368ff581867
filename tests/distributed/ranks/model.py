"""A decoder's layer through portakernel's ops: plain, under FSDP2, and its norm and MLP in tensor parallel."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from portakernel import ops

WIDTH, HEADS, GROUPS, HIDDEN, LENGTH = 24, 4, 2, 20, 7


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH) + torch.arange(WIDTH) / WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight)


class GatedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(ops.silu_and_mul(torch.cat([self.gate(x), self.up(x)], -1)))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.qkv = nn.Parameter(torch.randn((HEADS + 2 * GROUPS) * WIDTH // HEADS, WIDTH) / WIDTH**0.5)
        self.output = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.mlp_norm = Norm()
        self.mlp = GatedMlp()

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = ops.linear_act(self.norm(x), self.qkv).reshape(batch, length, HEADS + 2 * GROUPS, WIDTH // HEADS)
        q, k, v = torch.split(heads, [HEADS, GROUPS, GROUPS], dim=-2)
        mixed = ops.attention(q, k, v, causal=True).reshape(batch, length, WIDTH)
        x = ops.add(x, ops.linear_act(mixed, self.output))
        return ops.add(x, self.mlp(self.mlp_norm(x)))


def _layer(device: str) -> Layer:
    torch.manual_seed(11)
    return Layer().to(device)


def fsdp_differences(mesh: DeviceMesh, *, mixed: bool = False, compiled: bool = False) -> list[str]:
    """Where two steps of the layer under FSDP2 end up elsewhere than the same layer with all ranks' data."""
    device, ranks = mesh.device_type, mesh.size()
    generator = torch.Generator().manual_seed(5)
    data = torch.randn(2, ranks, 2, LENGTH, WIDTH, generator=generator).to(device)
    plain, sharded = _layer(device), _layer(device)
    low = torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    fully_shard(sharded.mlp, mesh=mesh, mp_policy=policy)
    fully_shard(sharded, mesh=mesh, mp_policy=policy)
    for module in [sharded.mlp, sharded] if compiled else []:  # FSDP2 gathers between their graphs
        module.compile(backend="aot_eager")
    steps = [torch.optim.AdamW(module.parameters(), lr=0.01) for module in (plain, sharded)]
    found = []
    for batch in data:
        losses = []
        for mine in batch:
            working = copy.deepcopy(plain).to(low) if mixed else plain
            losses.append(working(mine.to(low) if mixed else mine).float().square().mean())
            (losses[-1] / ranks).backward()
            if mixed:
                _accumulate(plain, working)
        loss = sharded(batch[mesh.get_local_rank()]).float().square().mean()
        loss.backward()
        if not torch.allclose(loss, losses[mesh.get_local_rank()], rtol=1e-5):
            found.append(f"loss {loss.item()} is not {losses[mesh.get_local_rank()].item()}")
        found += _differences("gradient", _gradients(plain), _gradients(sharded))
        for step in steps:
            step.step()
            step.zero_grad()
    return found + _differences("parameter", dict(plain.named_parameters()), dict(sharded.named_parameters()))


def _accumulate(plain: nn.Module, working: nn.Module) -> None:
    for held, low in zip(plain.parameters(), working.parameters(), strict=True):
        assert low.grad is not None
        held.grad = low.grad.float() + (0 if held.grad is None else held.grad)


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def _differences(what: str, right: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    if right.keys() != found.keys():
        return [f"{what}s of {sorted(found)}, not of {sorted(right)}"]
    texts = []
    for name, tensor in right.items():
        other = found[name]
        whole = other.full_tensor() if isinstance(other, DTensor) else other
        largest = tensor.abs().max().item()
        if not torch.allclose(whole, tensor, rtol=1e-4, atol=1e-5 * largest):
            texts.append(f"{what} of {name} is off by {(whole - tensor).abs().max().item()}, {largest} is largest")
    return texts


def tensor_parallel_differences(mesh: DeviceMesh) -> list[str]:
    """Where a norm over sequence parts and a gated MLP over columns differ from the plain ones."""
    device = mesh.device_type
    plain, parallel = _layer(device), _layer(device)
    plan = {
        "mlp_norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    parallelize_module(parallel, mesh, plan)
    # PyTorch takes ranks' plain parts for equally long
    x = torch.randn(2, 4 * mesh.size(), WIDTH, generator=torch.Generator().manual_seed(6)).to(device)
    found = parallel.mlp(parallel.mlp_norm(x.tensor_split(mesh.size(), 1)[mesh.get_local_rank()]))
    right = plain.mlp(plain.mlp_norm(x))
    right.square().sum().backward()
    found.square().sum().backward()
    return [
        *_differences("result", {"mlp": right}, {"mlp": found}),
        *_differences("gradient", _gradients(plain), _gradients(parallel)),
    ]
