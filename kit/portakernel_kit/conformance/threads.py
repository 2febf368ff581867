"""How many of torch's CPU threads the kit takes: one, where tensors are small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


def on_one_thread(steps: Iterator[T]) -> Iterator[T]:
    """``steps``, each taken with a single CPU thread of torch.

    Threads that wait for each other over a few thousand elements cost more than the elements: with two on two cores the
    cases of attention took five times as long (torch 2.13, 2026-11-20), and more on a machine that is busy.
    """
    while True:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            step = next(steps)
        except StopIteration:
            return
        finally:
            torch.set_num_threads(threads)
        yield step
