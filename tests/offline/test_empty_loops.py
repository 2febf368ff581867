"""Loops that may have nothing to do copy nothing: what they load ahead is under a mask that compilers have to keep.

A division by the number of steps, also where there are none, lets LLVM drop that mask. What the copy engine then brings
is awaited by nobody, and arrives in memory that serves something else by then.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.triton_launch.offline import compiling
from portakernel.words.target import Target
from portakernel_plugins.triton.attention import backward, block_sparse, block_sparse_gradients, forward

SIZES = (2, 512)  # batches, queries and keys


def of_meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def dense(width: int, heads: int, key_heads: int) -> None:
    q, k = of_meta(*SIZES, heads, width), of_meta(*SIZES, key_heads, width)
    values: dict[str, Any] = {"causal": True, "scale": None, "window": (-1, -1), "softcap": 0.0, "return_lse": False}
    forward.attention(q, k, k, **values)
    lse = of_meta(2, heads, 512, dtype=torch.float32)
    needs = (True,) * 3 + (False,) * 3
    backward.backward(q, q, k, k, None, None, None, q, lse, **values, needs=needs)


def sparse(width: int, heads: int, key_heads: int) -> None:
    q, k = of_meta(*SIZES, heads, width), of_meta(*SIZES, key_heads, width)
    lists = [of_meta(2, heads, 4, *more, dtype=torch.int32) for more in ((), (4,))] * 2
    values: dict[str, Any] = {"mask": "causal", "window": (-1, -1), "block": "128x128", "scale": None, "softcap": 0.0}
    values["return_lse"] = False
    block_sparse.attention(q, k, k, *lists, **values)
    lse, needs = of_meta(2, heads, 512, dtype=torch.float32), (True,) * 3 + (False,) * 12
    block_sparse_gradients.backward(q, q, k, k, *lists, *[None] * 4, *lists, q, lse, **values, needs=needs)


@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("attend", [dense, sparse])
def test_no_copy_of_a_loop_is_issued_whether_or_not_it_has_steps(attend, width, key_heads):
    with compiling(Target.parse("nvidia:sm_90")) as found:
        attend(width, 4, key_heads)
    copying = [one for one in found if "cp.async.bulk.tensor" in one.assembly]
    assert copying
    for one in copying:
        # one thread says how much a barrier waits for: that is its number alone, or whether there is a step as well
        expected = re.findall(r"@(%p\d+) mbarrier\.arrive\.expect_tx", one.assembly)
        assert expected
        made = {name: re.findall(rf"(\S+) \t{name},", one.assembly) for name in set(expected)}
        assert [(one.function, name, how) for name, how in made.items() if how != ["and.pred"]] == []
