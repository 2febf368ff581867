"""Ops in models that are compiled piece by piece, or computed anew in backward, with formulas in their graphs."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    # torch's own, of what a graph is given that another one made
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


class Block(torch.nn.Module):
    def __init__(self, ops) -> None:
        super().__init__()
        self.ops = ops
        self.weight = torch.nn.Parameter(torch.randn(16))
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.ops.add(x, torch.tanh(self.linear(self.ops.rms_norm(x, self.weight))))


class Model(torch.nn.Module):
    def __init__(self, ops, step=lambda block, x: block(x)) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(ops) for _ in range(3)])
        self.step = step

    def forward(self, x):
        for block in self.blocks:
            x = self.step(block, x)
        return x.square().mean()


def _recomputed(block, x):
    return checkpoint(block, x, use_reentrant=False)


def _piece_by_piece(model):
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    return model


def _whole(model):
    return torch.compile(model, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize(
    ("step", "compiled", "calls"),
    [
        (lambda block, x: block(x), _piece_by_piece, 0),
        # traced once, in a way of its own (torch 2.11 to 2.13): the first block stands in the graph, the others are it
        (torch.compiler.nested_compile_region(lambda block, x: block(x)), _whole, 2),
        (_recomputed, _whole, 0),
        (_recomputed, _piece_by_piece, 0),
    ],
    ids=["regional", "nested region", "checkpointed", "checkpointed regions"],
)
def test_gradients_are_those_of_the_model_that_is_not_compiled(ops, step, compiled, calls):
    torch._dynamo.reset()
    model, x = Model(ops), torch.randn(5, 16)
    parameters = list(model.parameters())
    want = torch.autograd.grad(model(x), parameters)
    model.step = step
    torch.testing.assert_close(torch.autograd.grad(compiled(model)(x), parameters), want)
    # beside those of the model that is not compiled; what is inline is no call
    assert ops.served("rms_norm", "training") == {"raw_kernels.rms_norm": 3 + calls}
    torch._dynamo.reset()
