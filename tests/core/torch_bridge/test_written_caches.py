"""Ops that write caches, as an engine calls them: compiled, beside autograd, and with slots looked at first."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch

from portakernel import ops
from portakernel.errors import DerivativeError

pytestmark = pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning")


def layer(qkv, cache, slots):
    """Writes keys and values of one projection into both halves of a cache, twice as large, and reads them back."""
    key, value = (2 * qkv).split(1, dim=1)
    ops.write_kv_cache(key, value, cache[:, 0], cache[:, 1], slots)
    return cache[:, 0].sum() - cache[:, 1].sum()


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_a_compiled_graph_writes_both_halves_of_a_joined_cache_before_it_reads_them():
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for seed in range(2):
        qkv = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(seed))
        eager, traced = torch.zeros(2, 2, 3, 1, 4), torch.zeros(2, 2, 3, 1, 4)
        slots = torch.tensor([5, -1, seed])
        torch.testing.assert_close(compiled(qkv, traced, slots), layer(qkv, eager, slots))
        assert torch.equal(traced, eager)
        assert torch.equal(traced[1, 0, 2], 2 * qkv[0, :1])


def test_scales_that_a_call_computes_are_written_in_a_graph_too():
    def write(key, cache, scales, slots):
        ops.write_kv_cache(
            key,
            key,
            cache[0],
            cache[1],
            slots,
            kv_scales="token_head",
            key_scales=scales[0],
            value_scales=scales[1],
        )

    key, slots = torch.randn(3, 1, 4), torch.tensor([5, -1, 0])
    made = [(torch.zeros(2, 2, 3, 1, 4).to(torch.float8_e4m3fn), torch.zeros(2, 2, 3, 1)) for _ in range(2)]
    write(key, *made[0], slots)
    torch.compile(write, backend="aot_eager", fullgraph=True)(key, *made[1], slots)
    assert torch.equal(made[0][0].view(torch.uint8), made[1][0].view(torch.uint8))
    assert torch.equal(made[0][1], made[1][1])
    assert torch.equal(made[0][1][:, 1, 2, 0], (key[0].abs().amax() / torch.tensor(448.0)).expand(2))


@pytest.mark.parametrize("name", ["latent", "latent_cache"])
def test_nothing_that_is_written_has_a_gradient(name):
    tensors = {"latent": torch.ones(1, 4), "rope": torch.ones(1, 2)}
    tensors |= {"latent_cache": torch.zeros(1, 2, 4), "rope_cache": torch.zeros(1, 2, 2)}
    tensors[name].requires_grad_()
    text = (
        "write_latent_cache writes into latent_cache and rope_cache and has no gradient; pass detach()ed tensors, or"
        " use torch.no_grad()"
    )
    with pytest.raises(DerivativeError, match=f"^{re.escape(text)}$"):
        ops.write_latent_cache(*tensors.values(), torch.tensor([0]))
    with torch.no_grad():
        ops.write_latent_cache(*tensors.values(), torch.tensor([1]))
    assert tensors["latent_cache"].tolist() == [[[0.0] * 4, [1.0] * 4]]


PROGRAM = """
import sys, warnings
import torch
from portakernel import ops
from portakernel.errors import PortakernelError

warnings.simplefilter("ignore")
for slots in ([3, 6], [4, 1, 4], [-2, 0], [5, -1]):
    rows, caches = torch.ones(len(slots), 1, 4), torch.zeros(2, 2, 3, 1, 4)
    try:
        ops.write_kv_cache(rows, rows, *caches, torch.tensor(slots))
        print("wrote", caches.sum().item())
    except PortakernelError as error:
        print(f"{type(error).__name__}: {error}".partition(" each")[0])
"""


def test_slots_are_looked_at_before_anything_is_written_where_that_is_asked_for(python: Any):
    ran = python("-c", PROGRAM, env={**os.environ, "PORTAKERNEL_CHECKS": "1"})
    assert ran.returncode == 0, ran.stderr
    within = "it must be in [0, NP*P) with NP*P = 6, or -1 for a token that is not written"
    assert ran.stdout.splitlines() == [
        f"IndexOutOfRangeError: write_kv_cache: slot_mapping[1] is 6; {within}",
        "ArgumentValueError: write_kv_cache: slot_mapping[2] is 4, and so is slot_mapping[0];",
        f"IndexOutOfRangeError: write_kv_cache: slot_mapping[0] is -2; {within}",
        "wrote 8.0",
    ]
