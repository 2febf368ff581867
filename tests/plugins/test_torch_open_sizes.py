"""Graphs with sizes that are open, or that only their run can tell: what of the torch plugin stands in them."""

from __future__ import annotations

import pytest
import torch

from portakernel import ops
from portakernel.torch_bridge.in_graph import CUSTOM_META

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    # torch's own compiler, on importing its parts
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, **options):
    """``function`` compiled without code for the device, and what its graphs say of the kernels in them."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    said: list[str] = []

    def compiler(graph, _inputs):
        said.extend((node.meta.get("custom") or {}).get(CUSTOM_META, "") for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    return torch.compile(function, fullgraph=True, backend=backend, **options), said


def test_a_linear_layer_stands_inline_whatever_the_number_of_rows():
    weight, bias = torch.randn(6, 8), torch.randn(6)
    call = lambda x: ops.linear_act(x, weight, bias, activation="silu")  # noqa: E731 - one function, compiled and not
    function, said = compiled(call, dynamic=True)
    for rows in range(2, 12):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(function(x), call(x))
    assert set(said) == {"", "linear_act: torch.linear_act_unfused, inline"}
    assert len(said) < 20  # of one graph


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_attention_over_as_many_tokens_as_only_the_run_can_tell(causal, trained):
    def call(q, mask):
        q = q[:, mask.nonzero().squeeze(-1)]
        return ops.attention(q, q, q, causal=causal)

    function, said = compiled(call)
    q = torch.randn(1, 8, 4, 16, requires_grad=trained)
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1, 1])
    found, wanted = function(q, mask), call(q, mask)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    if trained:
        grads = (torch.autograd.grad(y.square().sum(), q)[0] for y in (found, wanted))
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    (text,) = {text.partition(";")[0] for text in said if text}
    assert text.endswith(", call")
