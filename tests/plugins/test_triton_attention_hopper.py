"""The Hopper attention kernel without a GPU: its barriers and tiles on threads, its code by the compiler, its claims."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from plugins.gluon_on_threads import NAMES, Stuck, on_threads
from portakernel_plugins.triton.attention import hopper, hopper_kernel, hopper_softmax, hopper_tiles


def options(**more: Any) -> dict[str, Any]:
    usual = {"CONSUMERS": 2, "BLOCK": 32, "STAGES": 2, "PERSISTENT": True, "PINGPONG": False, "EVERY": 0}
    return {**usual, "CONSUMER_REGISTERS": 240, "PRODUCER_REGISTERS": 24, "num_warps": 4, **more}


@contextmanager
def emulated(monkeypatch, multiprocessors: int = 3, how: dict[str, Any] | None = None, **more: Any):
    with on_threads(monkeypatch, hopper_kernel, hopper_softmax, hopper_tiles, **more) as launch, monkeypatch.context() as patch:
        patch.setattr(hopper, "launch", launch)
        patch.setattr(hopper, "ROWS", SimpleNamespace(value=64))
        patch.setattr(hopper, "processor", lambda _: SimpleNamespace(multiprocessors=multiprocessors))
        patch.setattr(hopper, "configuration", lambda *_: SimpleNamespace(options=how or options()))
        yield


def inputs(B: int, S: int, T: int, H: int, G: int, D: int = 64, dtype: torch.dtype = torch.bfloat16):
    draw = torch.Generator().manual_seed(S * T)
    return tuple(torch.randn(B, n, h, D, generator=draw).to(dtype) for n, h in ((S, H), (T, G), (T, G)))
