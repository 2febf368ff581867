"""Compiled functions that are trained in policy blocks, where kernels of the torch plugin save in different ways."""

from __future__ import annotations

import collections

import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.errors import NoKernelError

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    # torch's own compiler, on importing its parts
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]
LENGTHS = torch.tensor([0, 3, 8], dtype=torch.int32)
CALLS = {
    "linear_act": (lambda x, w: ops.linear_act(x, w, activation="silu"), [(5, 8), (6, 8)]),
    "attention": (ops.attention, [(2, 8, 4, 16)] * 3),
    "attention_varlen": (lambda *qkv: ops.attention_varlen(*qkv, LENGTHS, LENGTHS), [(8, 4, 16)] * 3),
    "linear_cross_entropy": (lambda x, w: ops.linear_cross_entropy(x, w, torch.arange(5)), [(5, 8), (6, 8)]),
}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def served():
    return collections.Counter({(one.kernel, str(one.phase)): one.calls for one in portakernel.stats()})


@pytest.mark.parametrize(
    ("op", "wishes", "forward", "backward"),
    [
        ("linear_act", {"use": "reference"}, "reference.linear_act", "reference.linear_act"),
        ("linear_act", {"deny": "torch"}, "reference.linear_act", "reference.linear_act"),
        ("linear_act", {"use": "torch"}, "torch.linear_act_saved", "torch.linear_act_saved"),
        ("attention", {"use": "reference"}, "reference.attention", "reference.attention"),
        ("attention", {"deny": "torch.attention_flash_cpu"}, "reference.attention", "reference.attention"),
        ("attention_varlen", {"use": "reference"}, "reference.attention_varlen", "reference.attention_varlen"),
        ("linear_cross_entropy", {"use": "reference"}, *["reference.linear_cross_entropy"] * 2),
    ],
)
def test_forward_and_backward_follow_the_block(op, wishes, forward, backward):
    call, shapes = CALLS[op]
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    function = torch.compile(call, fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(call(*tensors).square().sum(), tensors)
    with portakernel.policy(**wishes):
        function(*tensors).sum().backward()  # traced
        before = served()
        found = torch.autograd.grad(function(*tensors).square().sum(), tensors)
        ran = served() - before
    assert ran == {(forward, "training"): 1, (backward, "backward"): 1}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_block_that_asks_for_what_only_its_own_backward_reads_is_refused_in_forward():
    call, shapes = CALLS["attention"]
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    function = torch.compile(call, fullgraph=True, backend="aot_eager")
    with (
        portakernel.policy(use="torch.attention_flash_cpu"),
        pytest.raises(NoKernelError, match="a graph that follows policy blocks chooses apart"),
    ):
        function(*tensors)
