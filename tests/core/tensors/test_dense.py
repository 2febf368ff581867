"""Where tensors lie for kernels that follow no strides: as they are where they can, copied where they cannot."""

from __future__ import annotations

import pytest
import torch

from portakernel.errors import CaptureError
from portakernel.tensors import compilation
from portakernel.tensors.compilation import announce_once, compilations
from portakernel.tensors.dense import delivered, dense, room, rows


def test_what_has_no_gaps_stays_and_what_has_is_copied():
    x = torch.randn(4, 6)
    assert dense(x) is x
    for strided in (x[:, :3], x.t(), x[::2], x[0].expand(4, 6)):
        copy = dense(strided)
        assert (copy.is_contiguous(), torch.equal(copy, strided)) == (True, True)
        assert copy.data_ptr() != strided.data_ptr()


def test_an_address_counts_where_an_alignment_is_asked_for():
    x = torch.randn(64)
    off_by_one = x[1:33]
    assert dense(off_by_one) is off_by_one
    copy = dense(off_by_one, 16)
    assert (copy.data_ptr() % 16, torch.equal(copy, off_by_one)) == (0, True)
    assert dense(x, 16) is x
    assert room(off_by_one, off_by_one, 16) is not off_by_one
    assert room(off_by_one, off_by_one) is off_by_one


def test_a_result_goes_into_out_where_that_is_dense_and_beside_it_where_not():
    x, out = torch.randn(3, 5), torch.empty(3, 5)
    assert room(x, out) is out
    assert delivered(out, out) is out
    strided = torch.empty(5, 3).t()
    beside = room(x.t().contiguous().t(), strided).copy_(x)
    assert (beside.is_contiguous(), beside.shape) == (True, x.shape)
    assert delivered(beside, strided) is strided
    assert torch.equal(strided, x)
    assert delivered(beside, None) is beside


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 3, 4),
        torch.randn(4),
        torch.randn(0, 4),
        torch.randn(5, 4)[3:4],
        torch.randn(3, 8)[1:2, :4],  # one row, whose stride says 8
        torch.randn(3, 5)[:1, :1],
    ],
)
def test_rows_have_the_strides_of_a_matrix_without_gaps(x):
    assert x.is_contiguous()
    found, columns = rows(x), x.shape[-1]
    assert (found.shape, found.stride()) == ((x.numel() // columns, columns), (columns, 1))
    assert (found.data_ptr(), torch.equal(found.reshape(x.shape), x)) == (x.data_ptr(), True)


def test_what_is_compiled_once_is_announced_once_for_each_kind():
    before = len(compilations())
    for columns in (8, 8, 16, 8):
        announce_once("a kernel of this test", torch.float16, columns)
    announce_once("another kernel of this test")
    assert compilations().since(before) == (
        "a kernel of this test for torch.float16, 8",
        "a kernel of this test for torch.float16, 16",
        "another kernel of this test",
    )


def test_what_a_capture_refused_is_announced_after_it(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as capturing:
        capturing.setattr(compilation, "is_capturing", lambda: True)
        with pytest.raises(CaptureError):
            announce_once("a kernel that a capture refuses")
    before = len(compilations())
    announce_once("a kernel that a capture refuses")
    assert len(compilations()) == before + 1
