"""PyTorch's 4-bit products behind ``int4_mm``: which weights they take, and that these are packed once."""
# ruff: noqa: N803
# The letters are the contract's.

from __future__ import annotations

import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.authoring import check_groups, check_groups_or_all
from portakernel.claims.capability import CannotRun
from portakernel.references import int4_mm as formula
from portakernel_plugins.torch.matrix import int4_mm

WHOLE = {"layout": "gptq", "group": 32, "zero": "stored"}


def weight(N=16, K=64, group=32, seed=0, dtype=torch.float32):
    source = torch.Generator().manual_seed(seed)
    words = [
        torch.randint(-(2**31), 2**31, shape, generator=source).int() for shape in ((K // 8, N), (K // group, N // 8))
    ]
    scales = torch.rand((K // group, N), generator=source).to(dtype)
    return words[0], scales, words[1]


def refused(target, group=128, K=256, N=64, kernel="torch.int4_mm", **dtypes):
    shapes = {"x": (4, K), "weight": (K // 8, N), "scales": (-(-K // max(group, 1)) if group > 0 else 1, N)}
    dtypes = {"x": "bfloat16", "scales": "bfloat16", **dtypes}
    found = portakernel.explain("int4_mm", target=target, dtype=dtypes, shape=shapes, group=group).candidate(kernel)
    return [rejection.text for rejection in found.rejections if found.status == "rejected"]


def test_sizes_and_dtypes_are_claimed_as_tinygemm_takes_them():
    assert refused("nvidia:sm_90") == []
    assert any("float16" in text for text in refused("nvidia:sm_90", x="float16", scales="float16"))
    assert any("scales" in text for text in refused("nvidia:sm_90", scales="float16"))
    assert any("N" in text for text in refused("cpu:x86_64", N=24, kernel="torch.int4_mm_cpu"))


def test_groups_are_whole_and_of_sizes_that_kernels_know():
    assert check_groups(K=224, group=32) is check_groups_or_all(K=224, group=32) is check_groups_or_all(100, -1) is None
    found = check_groups(K=256, group=-1), check_groups(K=224, group=128), check_groups_or_all(K=100, group=0)
    assert [(r.text, r.parameter) for r in found if r is not None] == [
        ("takes groups of 32, 64, 128; this is -1", "group"),
        ("takes whole groups, K a multiple of 128; this is 224", "K"),
        ("takes groups of 32, 64, 128; this is 0", "group"),
    ]


@pytest.mark.parametrize("zero", ["stored", "stored_plus_one", "none"])
def test_a_weight_is_packed_at_its_first_call_and_again_when_it_was_written_to(zero, monkeypatch):
    packed = []
    pack = int4_mm._cpu_pack
    monkeypatch.setattr(int4_mm, "_cpu_pack", lambda q, tiles: packed.append(q) or pack(q, tiles))
    words, scales, zeros = weight()
    x, how = torch.randn(2, 3, 64), {**WHOLE, "zero": zero}

    def right():
        y = ops.int4_mm(x, words, scales, zeros, **how, kernel="torch.int4_mm_cpu")
        torch.testing.assert_close(y, formula.forward(x, words, scales, zeros, **how), rtol=1e-4, atol=1e-3)

    right()
    right()
    assert len(packed) == 1
    words.add_(12345)
    right()
    assert len(packed) == 2


def test_an_infinite_scale_leaves_a_weight_with_zeros_to_others():
    words, scales, zeros = weight()
    scales[1, 3] = torch.inf
    x = torch.ones(1, 64)
    with pytest.raises(CannotRun, match="has to be finite"):
        int4_mm.int4_mm(x, words, scales, zeros, **WHOLE)
    assert not int4_mm.int4_mm(x, words, scales, **WHOLE)[0, 3].isfinite()


@pytest.mark.parametrize(("K", "tiles"), [(256, 8), (192, 4), (96, 2)])
def test_a_gpu_s_weight_has_the_first_of_two_in_the_upper_half_of_a_byte(K, tiles, monkeypatch):
    given = []
    monkeypatch.setattr(int4_mm, "_pack", lambda pairs, inner: given.append((pairs, inner)) or pairs)
    words, scales, _ = weight(K=K, dtype=torch.bfloat16)
    q = torch.randint(0, 16, (16, K), dtype=torch.uint8)
    # no GPU is here: what is asked of the operator is shapes, and the bytes that would be given to it
    monkeypatch.setattr(int4_mm, "int4_parts", lambda *_, **__: (q.to("meta"), scales.to("meta"), None))
    pairs, both = int4_mm._packed(words.to("meta"), scales, None, columns=K, layout="gptq", zero="none")
    assert (given[0][1], tuple(pairs.shape), tuple(both.shape)) == (tiles, (16, K // 2), (K // 32, 16, 2))
