"""A call runs on its arrays' stream: seen through a library and streams that take note of what is asked of them.

Everything but CuPy and CUDA is the real thing: the call, its checks, the kernel, DLPack's capsules. Whether GPUs keep
to it is what ``benchmarks/arrays.py`` shows on one.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from portakernel import ops
from portakernel.calling.arrays import calls, streams
from portakernel.calling.arrays.streams import Queue, TorchStreams, taken_over
from portakernel.errors import ArgumentValueError
from portakernel.runtime import caller

X = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32))
CUDA, DEVICE = 2, torch.device("cuda", 0)
TORCHS, CALLERS = 0x70, 0xA0


class Log:
    """What was asked in a call, in order, and which stream torch worked on then."""

    def __init__(self) -> None:
        self.current = TORCHS
        self.events = list[tuple[str, Any]]()

    def add(self, what: str, value: Any) -> None:
        self.events.append((what, value))

    def of(self, what: str) -> list[Any]:
        return [value for name, value in self.events if name == what]


class FakeArray:
    """A producer: memory of the CPU that says to be a GPU's."""

    def __init__(self, tensor: torch.Tensor, log: Log, *, versions: bool = True) -> None:
        self.tensor, self.log, self.versions = tensor, log, versions
        self.dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
        self.strides = tuple(stride * tensor.itemsize for stride in tensor.stride())
        self.data = SimpleNamespace(ptr=tensor.data_ptr())

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, *, stream: int | None = None, **more: Any) -> Any:
        if more and not self.versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.log.add("exported for", stream)
        return self.tensor.__dlpack__(**more)


class FakeCuda:
    """Torch's streams, of a GPU that is not there."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def current(self, device: torch.device) -> Queue:
        return Queue(device, self.log.current)

    @contextlib.contextmanager
    def working_on(self, queue: Queue) -> Iterator[None]:
        before, self.log.current = self.log.current, queue.handle
        try:
            yield
        finally:
            self.log.current = before

    def keep(self, queue: Queue, tensors: Any) -> None:
        self.log.add("kept until done on", queue.handle)


class WrongStream(FakeCuda):
    """The fault: the work goes to torch's own stream, whichever the caller's is."""

    def working_on(self, queue: Queue) -> Any:
        return contextlib.nullcontext()


@pytest.fixture
def log(monkeypatch):
    """A fake CuPy, current on a stream of the caller's, and a registry that has a GPU."""
    log = Log()

    def from_dlpack(tensor: torch.Tensor) -> FakeArray:
        log.add("taken back on", log.current)
        return FakeArray(tensor, log)

    stream = SimpleNamespace(ptr=CALLERS)
    cuda = SimpleNamespace(get_current_stream=lambda index: stream)
    log.stream = stream
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=FakeArray, cuda=cuda, from_dlpack=from_dlpack))
    monkeypatch.setattr("portakernel.calling.arrays.calls.torch_device", lambda *_: DEVICE)
    return log


def served(log: Log, queues: Any, *arrays: Any, op: str = "rms_norm", **more: Any) -> Any:
    """A call with arrays on these streams; notes which one is current when the op itself is called."""

    def call(*tensors: Any, **named: Any) -> Any:
        log.add("launched on", log.current)
        return getattr(ops, op)(*tensors, **named)

    arguments = caller(op).arguments
    given = [*arrays, *[None] * (len(arguments.names) - len(arrays))]
    values = arguments.canonical([parameter.default for parameter in arguments.contract.parameters])
    return calls.ArrayCalls(arguments, call, queues).serve(given, values, more.get("out"), None)


def all_on_the_callers_stream(log: Log) -> bool:
    """Whether arrays were asked for, the op was launched and the results were taken on the caller's stream."""
    asked, launched, taken = log.of("exported for"), log.of("launched on"), log.of("taken back on")
    return bool(asked and launched) and {*asked, *launched, *taken} == {CALLERS}


def test_a_call_with_cupys_arrays_runs_on_cupys_stream(log):
    x, weight = FakeArray(X, log), FakeArray(X[0], log)
    y = served(log, FakeCuda(log), x, weight)
    assert type(y) is FakeArray
    assert torch.equal(y.tensor, ops.rms_norm(X, X[0]))
    assert log.events == [
        ("exported for", CALLERS),
        ("exported for", CALLERS),
        ("launched on", CALLERS),
        ("taken back on", CALLERS),
    ]
    assert log.current == TORCHS


def test_a_kernel_on_another_stream_than_the_arrays_is_noticed(log):
    served(log, FakeCuda(log), FakeArray(X, log), FakeArray(X[0], log))
    assert all_on_the_callers_stream(log)
    log.events.clear()
    served(log, WrongStream(log), FakeArray(X, log), FakeArray(X[0], log))
    assert not all_on_the_callers_stream(log)


@pytest.mark.parametrize("wrong", [None, -1, 1, TORCHS])
def test_arrays_asked_for_on_another_stream_are_noticed(log, monkeypatch, wrong):
    monkeypatch.setattr(Queue, "name", property(lambda _: wrong))
    served(log, FakeCuda(log), FakeArray(X, log), FakeArray(X[0], log))
    assert log.of("launched on") == [CALLERS]
    assert not all_on_the_callers_stream(log)


def test_out_is_written_on_the_callers_stream(log):
    out = FakeArray(torch.zeros_like(X), log)
    assert served(log, FakeCuda(log), FakeArray(X, log), FakeArray(X[0], log), out=out) is out
    assert torch.equal(out.tensor, ops.rms_norm(X, X[0]))
    assert log.of("exported for") == [CALLERS] * 3
    assert all_on_the_callers_stream(log)


def test_the_stream_is_asked_for_in_each_call(log):
    arrays = FakeArray(X, log), FakeArray(X[0], log)
    for handle in (0xB0, 0xC0, 0xB0):
        log.stream.ptr = handle
        log.events.clear()
        served(log, FakeCuda(log), *arrays)
        assert {value for _, value in log.events} == {handle}


def test_the_default_stream_is_named_as_dlpack_names_it(log):
    log.stream.ptr = 0
    served(log, FakeCuda(log), FakeArray(X, log), FakeArray(X[0], log))
    assert log.of("exported for") == [1, 1]
    assert log.of("launched on") == [0]


def test_each_threads_default_stream_is_refused(log):
    log.stream.ptr = 2
    with pytest.raises(ArgumentValueError) as caught:
        served(log, FakeCuda(log), FakeArray(X, log), FakeArray(X[0], log))
    assert str(caught.value) == (
        "CuPy works on the per-thread default stream, on which torch cannot hand results back; call inside"
        " `with cupy.cuda.Stream(non_blocking=True):`"
    )


def test_a_failing_call_leaves_torchs_stream_as_it_was(log):
    with pytest.raises(ArgumentValueError, match=r"^rms_norm: weight has shape \(4,\), so N = 4, but x has N = 64"):
        served(log, FakeCuda(log), FakeArray(X, log), FakeArray(X[:, 0].contiguous(), log))
    assert log.current == TORCHS


def test_a_producer_that_knows_no_versions_is_asked_without(log):
    old = FakeArray(X, log, versions=False)
    assert torch.equal(taken_over(old, Queue(DEVICE, CALLERS)), X)
    assert log.events == [("exported for", CALLERS)]


def test_on_a_cpu_no_stream_is_named(log):
    taken_over(FakeArray(X, log), Queue(torch.device("cpu")))
    assert log.events == [("exported for", None)]
    assert TorchStreams().current(torch.device("cpu")) == Queue(torch.device("cpu"))


class TestJax:
    """JAX shows no stream: the call runs on torch's, which JAX makes wait, and what was read is kept until it ran."""

    @pytest.fixture
    def library(self, monkeypatch):
        jax = pytest.importorskip("jax")
        library = calls.JaxArrays()
        monkeypatch.setattr(calls, "LIBRARIES", (library,))
        monkeypatch.setattr("portakernel.calling.arrays.calls.torch_device", lambda *_: DEVICE)
        return jax

    def test_its_arrays_are_asked_for_on_torchs_stream_and_kept(self, library, log, monkeypatch):
        asked = []
        real = calls.JaxArrays.taken

        def taken(self, array, queue):
            asked.append(queue.name)
            return real(self, array, Queue(torch.device("cpu")))

        monkeypatch.setattr(calls.JaxArrays, "taken", taken)
        x, weight = library.numpy.asarray(X.numpy()), library.numpy.asarray(X[0].numpy())
        y = served(log, FakeCuda(log), x, weight)
        assert isinstance(y, library.Array)
        assert asked == [TORCHS, TORCHS]
        assert log.events == [("launched on", TORCHS), ("kept until done on", TORCHS)]


class TestTorchStreams:
    """Which of torch's streams is entered for a handle, and how long memory is kept; torch.cuda is a stand-in."""

    @pytest.fixture
    def entered(self, monkeypatch):
        entered = list[Any]()

        def note(what: str) -> Any:
            def made(*arguments: Any, **named: Any) -> Any:
                entered.append((what, *arguments, *named.values()))
                return contextlib.nullcontext()

            return made

        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=TORCHS))
        monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
        monkeypatch.setattr(torch.cuda, "device", note("device"))
        monkeypatch.setattr(torch.cuda, "stream", note("stream"))
        monkeypatch.setattr(streams, "_stream", lambda handle, device: f"{handle:#x} of {device}")
        return entered

    @pytest.mark.parametrize(
        ("handle", "wanted"),
        [
            (TORCHS, ("device", DEVICE)),
            (0, ("stream", "default of cuda:0")),
            (CALLERS, ("stream", "0xa0 of cuda:0")),
        ],
        ids=["the current one", "the default one", "another"],
    )
    def test_the_stream_of_the_handle_is_entered_with_its_device(self, entered, handle, wanted):
        with TorchStreams().working_on(Queue(DEVICE, handle)):
            assert entered == [wanted]

    def test_the_current_stream_is_torchs(self, entered):
        assert TorchStreams().current(DEVICE) == Queue(DEVICE, TORCHS)

    def test_memory_is_kept_until_its_event_has_come(self, entered, monkeypatch):
        events = []

        class Event:
            def __init__(self) -> None:
                self.done, self.recorded = False, None
                events.append(self)

            def record(self, stream: Any) -> None:
                self.recorded = stream.cuda_stream

            def query(self) -> bool:
                return self.done

        monkeypatch.setattr(streams, "_event", Event)
        kept, queue = TorchStreams(), Queue(DEVICE, TORCHS)
        tensors = [torch.zeros(1) for _ in range(3)]
        gone = [weakref.ref(tensor) for tensor in tensors]
        for place in range(3):
            kept.keep(queue, (tensors[place],))
            tensors[place] = None
            if place == 1:
                assert [ref() is None for ref in gone] == [False, False, False]
                events[0].done = True
        assert [ref() is None for ref in gone] == [True, False, False]
        assert [event.recorded for event in events] == [TORCHS] * 3
