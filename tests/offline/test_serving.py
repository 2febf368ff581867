"""Serving from pages on targets that are not here: who serves, how float8 is read, what threads hold."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

import portakernel
from portakernel.offline.shared_memory import available_bytes
from portakernel.runtime import dispatcher
from portakernel.triton_launch.offline import compiling
from portakernel.words.target import Target
from portakernel_plugins.triton.attention.paged import paged_attention
from portakernel_plugins.triton.cache.write_kv_cache import write_kv_cache

# What ops read and write, and its caches.
CACHES = {
    "paged_attention": ("q", "key_cache", "value_cache"),
    "write_kv_cache": ("key", "key_cache", "value_cache"),
    "write_latent_cache": ("latent", "latent_cache", "rope_cache"),
}
TARGETS = ("nvidia:sm_80", "nvidia:sm_90", "amd:gfx90a", "amd:gfx942", "amd:gfx950", "amd:gfx1201")
HEADS, KEY_HEADS, PAGE = 32, 8, 16
# Where launches were measured, the best of twelve spills; sm_90 has a kernel of its own for prompts with such heads.
MEASURED = {("nvidia:sm_90", 128, "_forward"): 304}


@pytest.mark.parametrize("target", TARGETS)
def test_a_triton_kernel_serves_every_op_and_what_hardware_lacks_is_told(target):
    for op, parts in (("merge_attention", "a"), ("merge_attentions", "outs")):
        decision = portakernel.explain(op, target=target, dtype={parts: "bfloat16"})
        assert decision.candidates[0].kernel.name == f"triton.{op}"
    for op, (rows, *caches) in CACHES.items():
        for dtype in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"):
            decision = portakernel.explain(op, target=target, dtype={rows: "bfloat16", **dict.fromkeys(caches, dtype)})
            assert decision.candidates[0].kernel.name == f"triton.{op}"
            told = " ".join(shortfall.text for shortfall in decision.shortfalls)
            assert (f"{dtype} is " in told) is (dtype in FOREIGN[target])


# Which float8 is left to arithmetic of the kernel's own.
FNUZ, E4M3, E5M2 = "float8_e4m3fnuz", "float8_e4m3fn", "float8_e5m2"
FOREIGN = {
    "nvidia:sm_80": {FNUZ, E4M3, E5M2},
    "nvidia:sm_90": {FNUZ},
    "amd:gfx90a": {FNUZ, E4M3, E5M2},
    "amd:gfx942": {E4M3, E5M2},
    "amd:gfx950": {FNUZ},
    "amd:gfx1201": {FNUZ},
}


def of_meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def attend(width: int, cache: torch.dtype, most: int | None) -> None:
    """Decoding alone, or with prompts beside it."""
    caches = [of_meta(64, PAGE, KEY_HEADS, width, dtype=cache) for _ in range(2)]
    table, lengths, starts = (of_meta(*shape, dtype=torch.int32) for shape in ((4, 40), (4,), (5,)))
    values: dict[str, Any] = {"causal": True, "scale": None, "window": (-1, -1), "softcap": 0.0, "return_lse": False}
    bounds = {"max_seqlen_q": most, "max_seqlen_k": None}
    q = of_meta(600, HEADS, width)
    paged_attention(q, *caches, table, lengths, starts, kv_scales="none", **values, **bounds)


def test_codes_of_another_float8_are_never_given_to_an_instruction_that_reads_them_otherwise():
    """gfx942's instructions read and write e4m3fnuz, whose codes are worth half of what they are as e4m3fn."""
    rows, slots = of_meta(64, KEY_HEADS, 64), of_meta(64, dtype=torch.int64)
    with compiling(Target.parse("amd:gfx942")) as found:
        for dtype in (FNUZ, E4M3):
            narrow = getattr(torch, dtype)
            write_kv_cache(rows, rows, *(of_meta(4, PAGE, KEY_HEADS, 64, dtype=narrow) for _ in range(2)), slots)
        attend(64, torch.float8_e4m3fn, most=1)
    assert [one.function.rpartition(".")[2] for one in found] == ["_paged_rows", "_paged_rows", "_decode"]
    assert [bool(re.search(r"v_cvt_\w*fp8", one.assembly)) for one in found] == [True, False, False]


def test_prompts_beside_decoding_fit_and_spill_nothing(testrun_uid):
    """Decoding's tile with all rows that it may have, beside a prefill: one of them in each run, others in the next."""
    every = [(target, width) for target in TARGETS for width in (64, 128)]
    target, width = every[int(testrun_uid, 16) % len(every)]
    with compiling(Target.parse(target)) as found:
        attend(width, torch.bfloat16, most=None)
    assert [one.function.rpartition(".")[2] for one in found] == ["_forward", "_decode"]
    room = available_bytes(dispatcher().registry, Target.parse(target))
    assert room is not None
    for one in found:
        spilled = MEASURED.get((target, width, one.function.rpartition(".")[2]), 0)
        assert one.spilled_bytes <= spilled, (target, width, one.function)
        assert one.shared_bytes <= room, (target, width, one.function)


def test_heads_of_two_blocks_are_decoded_and_their_parts_added_up(testrun_uid):
    """As 80, 96 and 192 are, with the second block of values that an old ptxas does not have of narrow ones."""
    target = TARGETS[int(testrun_uid, 16) % len(TARGETS)]
    for width in (96, 192):
        with compiling(Target.parse(target)) as found:
            attend(width, torch.bfloat16, most=1)
        assert [one.function.rpartition(".")[2] for one in found] == ["_decode"]
