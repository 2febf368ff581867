"""Rows in memory: those that lie otherwise than one alone are copied, so that no row's bits depend on others."""

from __future__ import annotations

import pytest
import torch

from portakernel.tensors.rows import row_target, with_row_stride


def sliced(columns: int, stride: int) -> torch.Tensor:
    return torch.zeros(4, stride)[:, :columns]


@pytest.mark.parametrize(
    ("columns", "stride", "kept"),
    [
        (1024, 1025, True),  # as wide accesses as 16 allows are its own columns'
        (1000, 1008, False),  # 16 divides it: better
        (1000, 1016, True),
        (1000, 1004, False),  # 8 does not: worse
        (1500, 1501, False),
        (1500, 1508, True),
        (1001, 1003, True),
        (1001, 1008, False),
    ],
)
def test_rows_that_lie_better_or_worse_than_one_alone_are_copied(columns, stride, kept):
    x = sliced(columns, stride)
    read, found = with_row_stride(x)
    assert (read.data_ptr() == x.data_ptr(), found) == (kept, stride if kept else columns)
    target, found = row_target(torch.zeros(4, columns), x)
    assert (target is x, found) == (kept, stride if kept else columns)
