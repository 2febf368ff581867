"""PyTorch's embedding bags: what each device's kernel can address, and what is refused."""

from __future__ import annotations

import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.errors import ArgumentValueError
from portakernel_plugins.torch import embedding_bag


def draw() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(20, 6, generator=generator)
    return table, torch.randint(20, (9,), generator=generator), torch.tensor([0, 0, 4, 9])


@pytest.mark.parametrize(
    ("sizes", "refused"),
    [
        ({"B": 10, "I": 100, "N": 64}, False),
        ({"B": (1 << 24) - 1, "I": (1 << 24) - 1, "N": 127}, False),
        ({"B": 1 << 24, "I": 1, "N": 128}, True),  # elements of the bags' gradients
        ({"B": 1, "I": 1 << 24, "N": 65}, True),  # a warp of threads for each index: 128 columns count
        ({"B": None, "I": 1 << 40, "N": 128}, False),  # what a request leaves open rejects nothing
    ],
)
def test_what_the_cuda_kernels_count_in_32_bits_is_refused(sizes, refused):
    rejection = embedding_bag.reachable(**sizes)
    assert (rejection is not None) == refused
    if rejection is not None:
        assert (rejection.code, rejection.text.partition(";")[0]) == ("limit", "counts to 2**31")


@pytest.mark.parametrize(("V", "refused"), [((1 << 24) - 1, False), (1 << 24, True), (None, False)])
def test_what_the_metal_kernel_addresses_in_32_bits_is_refused(V, refused):  # noqa: N803
    assert (embedding_bag.reachable_mps(B=4, N=256, V=V) is not None) == refused


@pytest.mark.parametrize(("target", "kernel"), [("nvidia:sm_90", "embedding_bag"), ("apple:m3", "embedding_bag_mps")])
def test_of_a_device_that_is_not_here_sizes_are_taken_to_fit(target, kernel):
    shape = {"weight": (1 << 30, 128), "indices": (1 << 30,), "offsets": (4,)}
    decision = portakernel.explain("embedding_bag", target=target, dtype={"weight": "float32"}, shape=shape)
    candidate = decision.candidate(f"torch.{kernel}")
    assert candidate.status != "rejected"
    assert any(text.startswith("its check of B, ") for text in candidate.assumed)


def test_means_take_no_weights():
    table, indices, offsets = draw()
    with pytest.raises(ArgumentValueError, match="per_sample_weights need mode='sum'; this is 'mean'"):
        ops.embedding_bag(table, indices, offsets, torch.ones(9), mode="mean", kernel="torch.embedding_bag_cpu")


def test_metal_s_kernel_is_never_asked_for_bags_of_nothing(monkeypatch):
    monkeypatch.setattr(embedding_bag, "_forward", None)
    table, _, _ = draw()
    none, offsets = torch.empty(0, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    found = embedding_bag.embedding_bag_mps(table, none, offsets, mode="sum")
    assert torch.equal(found, torch.zeros(4, 6))
    out = torch.full((4, 6), torch.nan)
    assert embedding_bag.embedding_bag_mps(table, none, offsets, mode="mean", out=out) is out
    assert torch.equal(out, torch.zeros(4, 6))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_training_gives_the_dense_gradient_of_torch_s_own_function(mode, dtype):
    table, indices, offsets = draw()
    leaves = [table.clone().requires_grad_() for _ in range(2)]
    ours = ops.embedding_bag(
        leaves[0], indices.to(dtype), offsets.to(dtype), mode=mode, kernel="torch.embedding_bag_cpu"
    )
    theirs = torch.nn.functional.embedding_bag(indices, leaves[1], offsets, mode=mode)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(4, 6)
    for y in (ours, theirs):
        (y * weights).sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize(("mode", "served"), [("sum", True), ("mean", False)])
def test_16_bit_bags_on_cpus_are_sums(mode, served):
    decision = portakernel.explain("embedding_bag", target="cpu:x86_64", dtype="bfloat16", mode=mode)
    assert (decision.candidate("torch.embedding_bag_cpu_sums").status != "rejected") == served
