"""The part of Gluon that the Hopper kernel has, on threads and torch tensors: what barriers order, and no layouts.

A partition is a thread. What the chip does later is done as late as the program allows, or at some time in between:
products read their operands when they are waited for, results leave shared memory when the store is waited for, and
copies arrive from a thread of their own, some after those that were asked for later: as soon as they can in programs of
even numbers, and in the others when no partition can go on without one. In those of even numbers one partition, in each
another one, is as late itself: it goes on when nobody else can. Fresh memory is NaN. Programs run one after the other,
and draw from a counter as if they took turns. Who waits for a barrier
that nobody completes gets ``Stuck``, and the other partitions with it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

# How long a partition waits for a barrier.
PATIENCE_S = 5.0


class Stuck(AssertionError):  # noqa: N818 - what the partition is
    """A barrier that was never completed."""


class _Barrier:
    def __init__(self, program: _Program) -> None:
        self.program, self.count, self.pending, self.bytes, self.phase = program, 0, 0, 0, 0

    def change(self, arrivals: int, more: int) -> None:
        with self.program.changed:
            self.pending -= arrivals
            self.bytes += more
            assert self.pending >= 0, "more arrivals than a barrier's phase has"
            if self.pending == 0 and self.bytes == 0:
                self.phase ^= 1
                self.pending = self.count
                self.program.changed.notify_all()

    def wait(self, phase: int) -> None:
        program = self.program
        with program.changed:
            if HERE.late:
                program.changed.wait_for(lambda: program.is_held_up() or program.failed, PATIENCE_S)
            program.waits.append((self, phase))
            program.changed.notify_all()
            ended = program.changed.wait_for(lambda: self.phase != phase or program.failed, PATIENCE_S)
            program.waits.remove((self, phase))
            if not ended or program.failed:
                program.failed = True
                program.changed.notify_all()
                raise Stuck("a partition waits for a barrier that nobody completes")


class _Shared:
    """A descriptor of shared memory."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.dtype = getattr(data, "dtype", None)

    def index(self, place: Any) -> Any:
        found = self.data[int(place)]
        return found if isinstance(found, _Barrier) else _Shared(found)

    def reshape(self, shape: Sequence[int]) -> _Shared:
        return _Shared(self.data.view(*shape))

    def permute(self, order: Sequence[int]) -> _Shared:
        return _Shared(self.data.permute(*order))

    def store(self, value: Tensor) -> None:
        self.data.copy_(value)

    def load(self, layout: Any) -> Tensor:
        del layout
        return self.data.clone()

    def slice(self, start: int, length: int, dim: int) -> _Shared:
        return _Shared(self.data.narrow(dim, start, length))

    @property
    def shape(self) -> Sequence[int]:
        return tuple(self.data.shape)


class _Pointer:
    def __init__(self, memory: Tensor, offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, more: Any) -> _Pointer:
        return _Pointer(self.memory, self.offset + more)


class _Described:
    """A tensor descriptor, whose address is to be a multiple of 16 bytes."""

    def __init__(self, given: Any) -> None:
        assert given.base.data_ptr() % 16 == 0
        tensor = given.base
        self.memory = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
        self.first = tensor.storage_offset()
        self.shape, self.strides = given.shape, given.strides
        self.dtype, self.layout = tensor.dtype, None
        shape = list(given.block_shape)
        self.block_type = SimpleNamespace(shape=shape, nbytes=tensor.element_size() * torch.Size(shape).numel())

    def window(self, corner: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Where in memory each element of the block there is, and which of them the tensor has."""
        at, inside = torch.tensor(self.first), torch.tensor(True)
        for first, size, length, stride in zip(
            map(int, corner), self.shape, self.block_type.shape, self.strides, strict=True
        ):
            assert first >= 0
            index = torch.arange(first, first + length)
            # addresses have 64 bits, and numbers of elements of two bytes 63
            at = (at[..., None] + index * stride) & torch.iinfo(torch.int64).max
            inside = inside[..., None] & (index < size)
        return at, inside


class _Program:
    """One program's memory, barriers and copies."""

    def __init__(self, number: int, programs: int, seed: int) -> None:
        self.number, self.programs = number, programs
        self.changed = threading.Condition()
        self.failed = False
        self.draw = random.Random(seed)
        self.copies: list[Callable[[], None]] = []
        self.drawn = 0
        self.arriving = False
        self.over = False
        # partitions that have not ended, and the phases that some of them wait for the end of
        self.running = 0
        self.waits: list[tuple[_Barrier, int]] = []

    def _held_up(self) -> int:
        """How many partitions wait."""
        return sum(barrier.phase == phase for barrier, phase in self.waits)

    def is_held_up(self) -> bool:
        """Whether all but one partition wait for more than copies that are on their way."""
        return not self.copies and not self.arriving and self._held_up() >= self.running - 1

    def _is_due(self) -> bool:
        """Whether a copy is to arrive now."""
        return bool(self.copies) and (self.number % 2 == 0 or self._held_up() >= self.running)

    def copy_engine(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._is_due() or self.over or self.failed, PATIENCE_S)
                if not self.copies:
                    return
                copy = self.copies.pop(self.draw.randrange(len(self.copies)))
                self.arriving = True
            copy()
            with self.changed:
                self.arriving = False
                self.changed.notify_all()


class _Partition(threading.local):
    program: _Program
    late: bool
    threads: int
    products: list[_Product]
    copied: list[Callable[[], None]]
    stores: list[Callable[[], None]]


class _Product:
    """What the tensor cores compute when somebody waits for it; until then nothing but the next sum may have it."""

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self.compute: Callable[[], Tensor] | None = compute
        self.value: Tensor | None = None

    def end(self) -> None:
        assert self.compute is not None
        self.value, self.compute = self.compute(), None

    def found(self) -> Tensor:
        assert self.value is not None, "a product that is not waited for is used"
        return self.value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.found(), name)

    def __mul__(self, other: Any) -> Any:
        return self.found() * other

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        raise AssertionError("a product that is not waited for is used")


HERE = _Partition()


def _allocate(dtype: Any, shape: Sequence[int], layout: Any) -> _Shared:
    if dtype is torch.int64:
        return _Shared([_Barrier(HERE.program) for _ in range(shape[0])])
    fresh = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min
    return _Shared(torch.full(tuple(shape), fresh, dtype=dtype))


def _specialize(partitions: Sequence[tuple[Any, tuple[Any, ...]]], warps: Sequence[int], registers: Any) -> None:
    program, failures = HERE.program, list[BaseException]()
    assert len(partitions) == len(warps) + 1 == len(registers) + 1

    late = program.number // 2 % len(partitions) if program.number % 2 == 0 else None

    def run(place: int, function: Any, args: tuple[Any, ...]) -> None:
        HERE.program, HERE.products, HERE.stores, HERE.late = program, [], [], place == late
        HERE.copied, HERE.threads = [], 32 * (warps[place - 1] if place else 4)
        try:
            function(*map(_own, args))
            assert not HERE.products, "a product that nobody waited for"
            assert not HERE.stores, "a program ended before its results had left"
            assert not HERE.copied, "copies that no barrier counts"
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
            with program.changed:
                program.failed = True
        finally:
            with program.changed:
                program.running -= 1
                program.changed.notify_all()

    program.running = len(partitions)
    engine = threading.Thread(target=program.copy_engine, daemon=True)
    threads = [
        threading.Thread(target=run, args=(place, *partition), daemon=True)
        for place, partition in enumerate(partitions)
    ]
    for thread in (engine, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    with program.changed:
        program.over = True
        program.changed.notify_all()
    engine.join()
    if failures:
        raise failures[0]


def _load(described: _Described, corner: Sequence[Any], barrier: _Barrier, into: _Shared) -> None:
    corner = list(map(int, corner))

    def copy() -> None:
        at, inside = described.window(corner)
        into.data.zero_()
        into.data[inside] = described.memory[at[inside]]
        barrier.change(0, -described.block_type.nbytes)

    program = HERE.program
    with program.changed:
        program.copies.append(copy)
        program.changed.notify_all()


def _copy(into: _Shared, pointer: _Pointer, mask: Tensor) -> None:
    """By the partition's threads, which say so to a barrier when it has been done."""
    HERE.copied.append(lambda: into.store(_gl_load(pointer, mask)))


def _copies_arrive(barrier: _Barrier, increment_count: bool) -> None:
    assert not increment_count
    copies, threads, program = HERE.copied, HERE.threads, HERE.program
    HERE.copied = []

    def copy() -> None:
        for one in copies:
            one()
        barrier.change(threads, 0)

    with program.changed:
        program.copies.append(copy)
        program.changed.notify_all()


def _store(described: _Described, corner: Sequence[Any], block: _Shared) -> None:
    corner = list(map(int, corner))

    def copy() -> None:
        at, inside = described.window(corner)
        described.memory[at[inside]] = block.data[inside]

    HERE.stores.append(copy)


def _add(described: _Described, corner: Sequence[Any], block: _Shared) -> None:
    corner, program = list(map(int, corner)), HERE.program

    def copy() -> None:
        at, inside = described.window(corner)
        with program.changed:
            described.memory[at[inside]] += block.data[inside]

    HERE.stores.append(copy)


def _store_wait(pending: int) -> None:
    while len(HERE.stores) > pending:
        HERE.stores.pop(0)()


def _product(a: Any, b: _Shared, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> _Product:
    left = a if isinstance(a, Tensor) else a.data

    def compute() -> Tensor:
        found = left.float() @ b.data.float()
        # the sum so far can be a product that is still to be computed, before this one
        return found + (acc if isinstance(acc, Tensor) else acc.found()) if use_acc else found

    assert is_async
    HERE.products.append(_Product(compute))
    return HERE.products[-1]


def wait_for_earlier(pending: int, deps: tuple[Any, ...]) -> Any:
    """``warpgroup_mma_wait`` of kernels in which the product that it gives may be one that is still to be computed."""
    while len(HERE.products) > pending:
        HERE.products.pop(0).end()
    found = tuple(dep if dep.value is None else dep.value for dep in deps)
    return found if len(found) > 1 else found[0]


def _product_wait(pending: int, deps: tuple[Any, ...]) -> Any:
    found = wait_for_earlier(pending, deps)
    assert isinstance(found, Tensor), "a product that is not waited for is used"
    return found


def _draw(pointer: _Pointer, more: int) -> Tensor:
    """What a program draws when all take turns."""
    program = HERE.program
    program.drawn += more
    return torch.tensor((program.drawn - 1) * program.programs + program.number)


def _gl_store(pointer: _Pointer, value: Tensor, mask: Tensor | None = None) -> None:
    value, offset = torch.as_tensor(value), torch.as_tensor(pointer.offset)
    there = torch.ones_like(value, dtype=torch.bool) if mask is None else mask.expand(value.shape)
    pointer.memory.view(-1)[offset[there]] = value[there].to(pointer.memory.dtype)


def _gl_load(pointer: _Pointer, mask: Tensor | None = None, other: int = 0) -> Tensor:
    memory = pointer.memory.reshape(-1)
    if mask is None:
        return memory[pointer.offset]
    return torch.where(mask, memory[torch.where(mask, pointer.offset, 0)], other)


def _own(value: Any) -> Any:
    """A partition's own numbers, which it may change."""
    if isinstance(value, tuple):
        return tuple(map(_own, value))
    return value.clone() if isinstance(value, Tensor) and value.dim() == 0 else value


def _extreme(of: Any) -> Callable[[Any, Any], Any]:
    return lambda a, b: of(torch.as_tensor(a), torch.as_tensor(b))


def _scan(x: Tensor, axis: int, combine: Callable[[Any, Any], Any]) -> Tensor:
    found = list(x.unbind(axis))
    for place in range(1, len(found)):
        found[place] = combine(found[place - 1], found[place])
    return torch.stack(found, axis)


def _static_assert(condition: bool) -> None:
    assert condition


def _layout(*_: Any, **__: Any) -> None:
    return None


LANGUAGE = SimpleNamespace(
    constexpr=lambda value: value,
    int32=torch.int32,
    int64=torch.int64,
    float32=torch.float32,
    program_id=lambda _: torch.tensor(HERE.program.number),
    num_programs=lambda _: torch.tensor(HERE.program.programs),
    abs=torch.abs,
    minimum=_extreme(torch.minimum),
    maximum=_extreme(torch.maximum),
    ceil=torch.ceil,
    static_range=range,
    static_assert=_static_assert,
    arange=lambda begin, end, layout: torch.arange(begin, end),
    full=lambda shape, value, dtype, layout: torch.full(
        shape, int(value) if dtype is torch.int32 else value, dtype=dtype
    ),
    cast=lambda value, dtype: torch.tensor(value, dtype=dtype),
    zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
    where=torch.where,
    expand_dims=torch.unsqueeze,
    convert_layout=lambda x, layout: x,
    exp=torch.exp,
    exp2=torch.exp2,
    log2=torch.log2,
    max=torch.amax,
    sum=torch.sum,
    cumsum=torch.cumsum,
    cdiv=lambda a, b: -(-a // b),
    associative_scan=_scan,
    multiple_of=lambda x, of: x,
    max_contiguous=lambda x, of: x,
    max_constancy=lambda x, of: x,
    reshape=lambda x, shape: x.reshape(shape),
    permute=lambda x, order: x.permute(order),
    split=lambda x: x.unbind(-1),
    load=_gl_load,
    store=_gl_store,
    atomic_add=_draw,
    allocate_shared_memory=_allocate,
    warp_specialize=_specialize,
    NVMMADistributedLayout=_layout,
    DotOperandLayout=_layout,
    SliceLayout=_layout,
    BlockedLayout=_layout,
    DistributedLinearLayout=_layout,
    SwizzledSharedLayout=_layout,
    NVMMASharedLayout=SimpleNamespace(get_default_for=_layout),
    rsqrt=torch.rsqrt,
    inline_asm_elementwise=lambda asm, constraints, args, **_: args[0],  # what one thread gives the others, who have it
)


def _init(barrier: _Barrier, count: int) -> None:
    barrier.count = barrier.pending = count


BARRIERS = SimpleNamespace(
    MBarrierLayout=_layout,
    init=_init,
    wait=lambda barrier, phase: barrier.wait(int(phase)),
    arrive=lambda barrier, count: barrier.change(count, 0),
    expect=lambda barrier, count: barrier.change(1, count),
)

NAMES = {
    "gl": LANGUAGE,
    "tl": LANGUAGE,
    "mbarrier": BARRIERS,
    "tma": SimpleNamespace(store_wait=_store_wait),
    "load": _load,
    "store": _store,
    "add": _add,
    "copy": _copy,
    "async_copy": SimpleNamespace(mbarrier_arrive=_copies_arrive),
    "warpgroup_mma": _product,
    "warpgroup_mma_wait": _product_wait,
    "fence_async_shared": lambda: None,
}


def _plain(value: Any) -> Any:
    """What stands for a value of a kernel's module: functions as Python has them, numbers as such."""
    if hasattr(value, "fn") and hasattr(value, "arg_names"):
        return value.fn
    return value.value if type(value).__name__ == "constexpr" else value


def on_threads(monkeypatch: Any, *modules: ModuleType, **more: Any) -> Callable[..., None]:
    """A ``launch`` that runs kernels of ``modules`` on CPU tensors; ``more`` are other values for names in them."""

    def launch(kernel: Any, grid: tuple[int, int], *args: Any, **meta: Any) -> None:
        for option in ("num_warps", "maxnreg"):
            meta.pop(option, None)
        with monkeypatch.context() as patch:
            for module in modules:
                for name, value in vars(module).copy().items():
                    if name in NAMES or name in more or _plain(value) is not value:
                        patch.setattr(module, name, more.get(name, NAMES.get(name, _plain(value))))
            for number in range(grid[0]):
                HERE.program = _Program(number, grid[0], seed=number)
                _plain(kernel)(*map(_argument, args), **meta)

    return launch


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Pointer(value)
    if isinstance(value, (int, float)):
        return torch.tensor(value)
    return _Described(value) if hasattr(value, "block_shape") else value
