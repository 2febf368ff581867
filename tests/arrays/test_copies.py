"""Copies that DLPack makes in silence are counted, shown, and an error where none is wanted."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.calling.arrays import calls
from portakernel.errors import ArgumentTypeError, ArgumentValueError

X = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)


class CopyingNumPy(calls.NumPyArrays):
    """A library that gives copies away, and says nothing."""

    def taken(self, array, queue):
        return super().taken(array.copy(), queue)


class CopyingBack(calls.NumPyArrays):
    """A library that takes copies, and says nothing."""

    def given_back(self, tensor):
        return super().given_back(tensor).copy()


@pytest.fixture
def library(request, monkeypatch):
    monkeypatch.setattr(calls, "LIBRARIES", (request.param(),))


def counted(op):
    return {
        (row.name, row.library): (row.copies, row.bytes) for row in portakernel.stats().array_copies if row.op == op
    }


@pytest.mark.parametrize(("library", "name"), [(CopyingNumPy, "x"), (CopyingBack, "y")], indirect=["library"])
def test_a_copy_is_counted_with_its_bytes_and_shown(library, name):
    before = counted("softmax").get((name, "NumPy"), (0, 0))
    ops.softmax(X)
    assert counted("softmax")[name, "NumPy"] == (before[0] + 1, before[1] + X.nbytes)
    assert f"ArrayCopies(op='softmax', name='{name}', library='NumPy', copies={before[0] + 1}," in repr(
        portakernel.stats()
    )


@pytest.mark.parametrize(("library", "name"), [(CopyingNumPy, "x"), (CopyingBack, "y")], indirect=["library"])
def test_where_none_is_wanted_it_is_an_error(library, name):
    with pytest.raises(ArgumentValueError) as caught:
        ops.softmax(X, copy=False)
    assert str(caught.value) == (
        f"softmax: copy=False, but {name} (1024 bytes) was copied by NumPy: its memory is not aligned, or ordered, as"
        " NumPy asks"
    )


@pytest.mark.parametrize("library", [CopyingNumPy], indirect=True)
def test_what_is_written_is_never_a_copy(library):
    out = np.zeros_like(X)
    with pytest.raises(ArgumentValueError) as caught:
        ops.softmax(X, out=out)
    assert str(caught.value) == (
        "softmax: out is to be written, but NumPy gives a copy of it away, which nobody would see; give memory that it"
        " shares"
    )
    key, cache = np.ones((2, 1, 4), np.float32), np.zeros((3, 2, 1, 4), np.float32)
    with pytest.raises(
        ArgumentValueError, match=r"^write_kv_cache: key_cache is to be written, but NumPy gives a copy"
    ):
        ops.write_kv_cache(key, key, cache, cache.copy(), np.array([4, 1]))
    assert not out.any()


def test_jax_copies_what_is_not_aligned_and_that_is_counted():
    """The library itself: a result that lies 4 bytes beside what JAX asks for is copied by it without a word."""
    jax = pytest.importorskip("jax")
    library = calls.JaxArrays()
    beside = torch.arange(65.0)[1:]
    array = library.given_back(beside)
    assert isinstance(array, jax.Array)
    assert library.address(array) != beside.data_ptr()
    assert library.address(library.given_back(torch.arange(64.0))) % 64 == 0


def test_unaligned_results_of_jax_are_counted(monkeypatch):
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(X)
    plain = ops.softmax  # made once
    monkeypatch.setattr(
        calls.ArrayCalls, "counted", lambda *_: torch.empty(X.size + 1)[1:].view(X.shape).copy_(torch.from_numpy(X))
    )
    before = counted("softmax").get(("y", "JAX"), (0, 0))
    assert np.array_equal(plain(x), X)
    assert counted("softmax")["y", "JAX"] == (before[0] + 1, before[1] + X.nbytes)
    with pytest.raises(ArgumentValueError, match=r"^softmax: copy=False, but y \(1024 bytes\) was copied by JAX: "):
        plain(x, copy=False)


def test_to_tensors_it_means_nothing_eager_or_compiled():
    x = torch.from_numpy(X)
    wanted = ops.softmax(x)
    assert torch.equal(ops.softmax(x, copy=False), wanted)
    assert torch.equal(ops.softmax(x, copy=None), wanted)
    compiled = torch.compile(lambda x: ops.softmax(x, copy=False), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), wanted)


def test_it_is_false_or_none():
    with pytest.raises(ArgumentTypeError) as caught:
        ops.softmax(X, copy=True)
    assert str(caught.value) == (
        "softmax: copy is None (what DLPack copies is counted) or False (it is an error); this is True"
    )
    with pytest.raises(ArgumentTypeError, match=r"^softmax: unknown argument 'axis'; "):
        ops.softmax(X, copy=False, axis=0)


def test_statistics_are_a_tuple_that_can_be_pickled():
    now = portakernel.stats()
    again = pickle.loads(pickle.dumps(now))
    assert isinstance(now, tuple)
    assert (tuple(again), again.array_copies) == (tuple(now), now.array_copies)
