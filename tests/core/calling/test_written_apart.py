"""Arguments that are written lie apart from all others, byte by byte: views that interleave are accepted."""

from __future__ import annotations

import random
import re

import pytest
import torch
from torch import Tensor

from portakernel.calling.written_arguments import check_apart
from portakernel.errors import ArgumentValueError

PAGES, PAGE, HEADS, WIDTH = 3, 4, 2, 8
# Two caches in one tensor, as serving engines lay them out.
JOINED = {
    "one after the other": lambda: torch.zeros(2, PAGES, PAGE, HEADS, WIDTH).unbind(0),
    "page by page": lambda: torch.zeros(PAGES, 2, PAGE, HEADS, WIDTH).unbind(1),
    "row by row": lambda: torch.zeros(PAGES, PAGE, HEADS, 2 * WIDTH).split(WIDTH, -1),
    "row by row, one page": lambda: torch.zeros(1, PAGE, 1, 2 * WIDTH).split(WIDTH, -1),
    "row by row, heads first": lambda: torch.zeros(PAGES, HEADS, PAGE, 2 * WIDTH).transpose(1, 2).split(WIDTH, -1),
    "of unequal widths": lambda: torch.zeros(PAGES, PAGE, 12).split([8, 4], -1),
    "every second page": lambda: (torch.zeros(6, PAGE, WIDTH)[::2], torch.zeros(6, PAGE, WIDTH)[1::2]),
    "of the last dimension, one element each": lambda: torch.zeros(PAGES, PAGE, 2).split(1, -1),
}


def bytes_of(tensor: Tensor) -> list[int]:
    """The address of each byte of each element."""
    numbers = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers = numbers.unsqueeze(-1) + torch.arange(size) * stride
    size = tensor.element_size()
    return [tensor.data_ptr() + number * size + byte for number in numbers.flatten().tolist() for byte in range(size)]


@pytest.mark.parametrize("layout", JOINED)
def test_caches_in_one_tensor_are_apart(layout):
    key_cache, value_cache = JOINED[layout]()
    assert not set(bytes_of(key_cache)) & set(bytes_of(value_cache))
    given = {"key": torch.zeros(3, 2), "key_cache": key_cache, "value_cache": value_cache, "scale": None}
    check_apart("write", given, ("key_cache", "value_cache"))


def test_scales_between_narrower_rows_are_apart():
    memory = torch.zeros(PAGES, PAGE, WIDTH + 4, dtype=torch.uint8)
    cache, scales = memory[..., :WIDTH], memory.view(torch.float32)[..., WIDTH // 4]
    check_apart("write", {"cache": cache, "scales": scales}, ("cache", "scales"))
    with pytest.raises(ArgumentValueError, match=r"^write: cache is written, and shares memory with scales; "):
        check_apart("write", {"cache": memory, "scales": scales}, ("cache", "scales"))


def test_what_shares_memory_is_named_with_what_to_do():
    joined = torch.zeros(PAGES, PAGE, 12)
    text = "write: b is written, and shares memory with a; give tensors that lie apart (a.clone())"
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(text)}$"):
        check_apart("write", {"a": joined[..., :7], "b": joined[..., 6:]}, ("b",))
    text = "write: several elements of b, which is written, share memory, as after expand(); give a tensor of its own"
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(text)}"):
        check_apart("write", {"a": joined, "b": torch.zeros(1, 3).expand(2, 3)}, ("b",))


def test_the_second_neighbour_of_a_long_argument_is_looked_at_too():
    memory = torch.zeros(100)
    given = {"x": memory[0:10], "cache": memory[:90].view(9, 10)[:, 8:], "y": memory[40:50]}
    assert not set(bytes_of(given["x"][:8])) & set(bytes_of(given["cache"]))
    with pytest.raises(ArgumentValueError, match=r"^write: cache is written, and shares memory with x; "):
        check_apart("write", given, ("cache",))
    given["x"] = memory[0:8]
    with pytest.raises(ArgumentValueError, match=r"^write: cache is written, and shares memory with y; "):
        check_apart("write", given, ("cache",))


def test_arguments_that_are_read_may_share_memory_and_tensors_without_any_are_passed_over():
    memory = torch.zeros(8, 8)
    check_apart("write", {"a": memory, "b": memory[2:], "cache": torch.zeros(3)}, ("cache",))
    meta = torch.empty(4, 4, device="meta")
    check_apart("write", {"a": meta, "b": meta, "cache": torch.empty(4, 4, device="meta")}, ("b", "cache"))
    check_apart("write", {"a": memory, "cache": memory[:0]}, ("cache",))


def test_no_two_views_that_share_a_byte_are_ever_taken_for_apart():
    chance, refused, accepted = random.Random(5), 0, 0
    memory = torch.zeros(400)
    for _ in range(3000):
        views = []
        for _ in range(2):
            shape = [chance.randint(1, 4) for _ in range(chance.randint(1, 3))]
            strides = [chance.choice((1, 2, 3, 4, 6, 8, 12, 24)) for _ in shape]
            views.append(memory.as_strided(shape, strides, chance.randint(0, 40)))
        shared = len({*bytes_of(views[0])}) < 4 * views[0].numel() or {*bytes_of(views[0])} & {*bytes_of(views[1])}
        try:
            check_apart("write", {"a": views[0], "b": views[1]}, ("a",))
        except ArgumentValueError:
            refused += 1
            continue
        accepted += 1
        assert not shared
    assert min(refused, accepted) > 300
