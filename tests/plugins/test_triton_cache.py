"""What no case of ``write_kv_cache`` and ``write_latent_cache`` covers of their Triton kernel, mostly interpreted."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.authoring.triton import compiling
from portakernel.errors import ArgumentValueError
from portakernel.references import write_kv_cache as kv_reference
from portakernel.references import write_latent_cache as latent_reference
from portakernel.triton_launch import interpreter
from portakernel.triton_launch.interpreter import interpreting
from portakernel.words.target import Target
from portakernel_plugins.triton.cache.write_kv_cache import write_kv_cache
from portakernel_plugins.triton.cache.write_latent_cache import write_latent_cache

FLOAT8 = torch.float8_e4m3fn
PAGES, PAGE, HEADS, WIDTH = 4, 5, 3, 24


@pytest.fixture
def programs(monkeypatch):
    """The programs of each launch."""
    found: list[int] = []
    run = interpreter.run

    def record(kernel, grid, *rest):
        found.append(grid[0] * grid[1])
        run(kernel, grid, *rest)

    monkeypatch.setattr(interpreter, "run", record)
    return found


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def noise(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Memory of random bytes, NaN of every kind among them."""
    size = torch.Size(shape).numel() * dtype.itemsize
    source = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, (size,), generator=source, dtype=torch.uint8).view(dtype).view(shape)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


# Views of both caches, in one tensor or in two, and the tensor's shape.
CACHES = {
    "keys before values": ((2, PAGES, PAGE, HEADS, WIDTH), lambda m: (m[0], m[1])),
    "pages of both": ((PAGES, 2, PAGE, HEADS, WIDTH), lambda m: (m[:, 0], m[:, 1])),
    "rows of both": ((PAGES, PAGE, HEADS, 2 * WIDTH), lambda m: (m[..., :WIDTH], m[..., WIDTH:])),
    "heads before tokens": ((2, PAGES, HEADS, PAGE, WIDTH), lambda m: (m[0].transpose(1, 2), m[1].transpose(1, 2))),
    "rows of both, heads before tokens": (
        (PAGES, HEADS, PAGE, 2 * WIDTH),
        lambda m: (m[..., :WIDTH].transpose(1, 2), m[..., WIDTH:].transpose(1, 2)),
    ),
    "layers between": ((PAGES, 3, 2, PAGE, HEADS, WIDTH), lambda m: (m[:, 1, 0], m[:, 1, 1])),
    "tokens last": ((2, PAGES, HEADS, WIDTH, PAGE), lambda m: (m[0].permute(0, 3, 1, 2), m[1].permute(0, 3, 1, 2))),
}
SLOTS = [7, -1, 0, PAGES * PAGE - 1, 3, -1, 12]


@pytest.mark.parametrize("layout", CACHES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2], ids=["copied", "float8"])
def test_slices_of_one_projection_go_to_caches_that_lie_anyhow_and_nowhere_else(layout, dtype, programs):
    shape, views = CACHES[layout]
    qkv = draw(len(SLOTS), 4 * HEADS, WIDTH)
    key, value = qkv[:, 2 * HEADS : 3 * HEADS], qkv[:, 3 * HEADS :]
    found, exact = noise(*shape, dtype=dtype), noise(*shape, dtype=dtype)
    with interpreting():
        write_kv_cache(key, value, *views(found), torch.tensor(SLOTS))
    kv_reference.forward(key, value, *views(exact), torch.tensor(SLOTS))
    assert same_bytes(found, exact)
    assert len(programs) == 1


@pytest.mark.parametrize("kind", ["none", "tensor"])
def test_a_joined_latent_cache_is_written_in_one_launch(kind, programs):
    latent, rope, scale = draw(7, 48), draw(7, 16, seed=1), torch.tensor(0.7)
    found, exact = noise(PAGES, PAGE, 64, dtype=FLOAT8), noise(PAGES, PAGE, 64, dtype=FLOAT8)
    given = {"kv_scales": kind, "scale": None if kind == "none" else scale}
    with interpreting():
        write_latent_cache(latent, rope, found[..., :48], found[..., 48:], torch.tensor(SLOTS), **given)
    latent_reference.forward(latent, rope, exact[..., :48], exact[..., 48:], torch.tensor(SLOTS), **given)
    assert same_bytes(found, exact)
    assert len(programs) == 1


def test_scales_may_lie_in_the_rows_of_the_cache_itself():
    key, value = draw(7, HEADS, WIDTH), draw(7, HEADS, WIDTH, seed=1)

    def views(memory: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        rows = [memory[half] for half in range(2)]
        return [row[..., :WIDTH].view(FLOAT8) for row in rows], [
            row.view(torch.float32)[..., WIDTH // 4] for row in rows
        ]

    found, exact = (noise(2, PAGES, PAGE, HEADS, WIDTH + 4, dtype=torch.uint8) for _ in range(2))
    with interpreting():
        caches, (of_keys, of_values) = views(found)
        write_kv_cache(
            key, value, *caches, torch.tensor(SLOTS), key_scales=of_keys, value_scales=of_values, kv_scales="token_head"
        )
    caches, (of_keys, of_values) = views(exact)
    kv_reference.forward(
        key, value, *caches, torch.tensor(SLOTS), key_scales=of_keys, value_scales=of_values, kv_scales="token_head"
    )
    assert same_bytes(found, exact)


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-41, 2.0**-100, -3.0, 2.0**100, float("inf"), float("nan")])
@pytest.mark.parametrize("kind", ["tensor", "head"])
def test_any_scale_divides_as_a_division_does(scale, kind):
    numbers = torch.tensor([0.0, -0.0, 1.0, -3e38, 1e-38, float("inf"), -float("inf"), float("nan")])
    key = numbers.expand(2, 2, 8).contiguous()
    given = torch.tensor(scale) if kind == "tensor" else torch.tensor([scale, 0.5])
    caches = [noise(1, 2, 2, 8, dtype=FLOAT8) for _ in range(4)]
    slots = torch.tensor([1, 0])
    with interpreting():
        write_kv_cache(key, key, *caches[:2], slots, k_scale=given, v_scale=given, kv_scales=kind)
    kv_reference.forward(key, key, *caches[2:], slots, k_scale=given, v_scale=given, kv_scales=kind)
    for found, exact in zip(caches[:2], caches[2:], strict=True):
        torch.testing.assert_close(found.float(), exact.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("slots", [[-1, -7, PAGES * PAGE, 1 << 30], [-1] * 4])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_slots_that_there_are_not_keep_every_byte(slots, dtype):
    caches = [noise(PAGES, PAGE, HEADS, WIDTH) for _ in range(2)]
    with interpreting():
        write_kv_cache(draw(4, HEADS, WIDTH), draw(4, HEADS, WIDTH), *caches, torch.tensor(slots, dtype=dtype))
    assert all(same_bytes(cache, noise(PAGES, PAGE, HEADS, WIDTH)) for cache in caches)


def test_of_tokens_with_one_slot_every_element_is_one_of_theirs():
    key, value = draw(5, HEADS, WIDTH), draw(5, HEADS, WIDTH, seed=1)
    caches = [noise(PAGES, PAGE, HEADS, WIDTH) for _ in range(2)]
    with interpreting():
        write_kv_cache(key, value, *caches, torch.tensor([6, 6, 6, 6, 6]))
    for x, cache in zip((key, value), caches, strict=True):
        assert (cache[1, 1] == x).any(0).all()


@pytest.mark.parametrize("layout", ["far pages", "far tokens"])
def test_places_beyond_32_bits_are_reached(layout):
    far = (1 << 31) + 16
    key = draw(2, 1, 16)
    pages, rows = ((2, 1), (far, 16)) if layout == "far pages" else ((1, 2), (16, far))
    memory = torch.empty(far + 16, dtype=torch.uint8)  # untouched memory is not there
    cache = memory.as_strided((*pages, 1, 16), (*rows, 16, 1)).view(FLOAT8)
    other = torch.zeros(*pages, 1, 16).to(FLOAT8)
    with interpreting():
        write_kv_cache(key, key, cache, other, torch.tensor([0, 1]))
    assert torch.equal(memory[far:].view(FLOAT8).float(), key[1, 0].to(FLOAT8).float())
    assert same_bytes(cache.flatten(0, 2), other.flatten(0, 2))


def test_rows_apart_by_more_than_32_bits_are_read():
    far = (1 << 31) + 8
    key = torch.empty(far + 8, dtype=torch.bfloat16).as_strided((2, 1, 8), (far, 8, 1))
    key.copy_(draw(2, 1, 8))
    caches = [torch.zeros(1, 2, 1, 8, dtype=torch.bfloat16) for _ in range(2)]
    with interpreting():
        write_kv_cache(key, draw(2, 1, 8), *caches, torch.tensor([0, 1]))
    assert torch.equal(caches[0][0], draw(2, 1, 8))
    assert torch.equal(caches[1][0], draw(2, 1, 8))


WRONG = [
    ({"k_scale": 1}, "kv_scales='none' needs no scales; k_scale is given, and would not be used"),
    (
        {"kv_scales": "tensor", "k_scale": 1},
        "kv_scales='tensor' needs k_scale and v_scale, and no other scales; v_scale",
    ),
    (
        {"kv_scales": "token_head"},
        "kv_scales='token_head' needs key_scales and value_scales, and no other scales; key_",
    ),
]


@pytest.mark.parametrize(("given", "text"), WRONG, ids=[text for _, text in WRONG])
def test_scales_that_do_not_go_with_their_kind_write_nothing(given, text):
    caches = [noise(PAGES, PAGE, HEADS, WIDTH, dtype=FLOAT8) for _ in range(2)]
    given = {name: torch.tensor(1.0) if name != "kv_scales" else kind for name, kind in given.items()}
    with interpreting(), pytest.raises(ArgumentValueError, match=f"^{re.escape(f'write_kv_cache: {text}')}"):
        write_kv_cache(draw(1, HEADS, WIDTH), draw(1, HEADS, WIDTH), *caches, torch.tensor([0]), **given)
    assert all(same_bytes(cache, noise(PAGES, PAGE, HEADS, WIDTH, dtype=FLOAT8)) for cache in caches)


# The widest accesses of each target, as its assembly has them.
WIDE = {
    "nvidia:sm_90": (r"ld\.global\S*\.v4\.b32", r"st\.global\S*\.v4\.b32"),
    "amd:gfx942": (r"(global|buffer)_load_dwordx4", r"(global|buffer)_store_dwordx4"),
}


@pytest.mark.parametrize("target", WIDE)
@pytest.mark.parametrize("narrow", [False, True], ids=["copied", "float8"])
@pytest.mark.parametrize("heads_first", [False, True], ids=["tokens first", "heads first"])
def test_rows_of_a_model_are_moved_16_bytes_at_a_time(target, narrow, heads_first):
    qkv = torch.empty(64, 48, 128, dtype=torch.bfloat16, device="meta")
    dtype = FLOAT8 if narrow else torch.bfloat16
    shape = (32, 2, 8, 16, 128) if heads_first else (32, 2, 16, 8, 128)
    cache = torch.empty(shape, dtype=dtype, device="meta")
    cache = cache.transpose(2, 3) if heads_first else cache
    slots = torch.empty(64, dtype=torch.int64, device="meta")
    with compiling(Target.parse(target)) as compiled:
        write_kv_cache(qkv[:, 32:40], qkv[:, 40:], cache[:, 0], cache[:, 1], slots)
    (record,) = compiled
    assert record.spilled_bytes == 0
    assert all(re.search(access, record.assembly) for access in WIDE[target])
