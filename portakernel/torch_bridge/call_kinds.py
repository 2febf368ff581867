"""Which kinds of calls a program makes, and how often: ops, dtypes, shapes, layouts, and nothing of what tensors hold.

``portakernel.record`` looks at the calls of a block, through a dispatch mode. Where ``PORTAKERNEL_RECORD`` names a
file, calls are counted from the start, in whichever thread, and the file is written when the process ends: calls of
``portakernel.ops``, of handles of ``portakernel.bind``, and of the torch ops, as compiled graphs make them. Several
processes write into one file, one after the other.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from portakernel.calling.arguments import dtype_name
from portakernel.calling.observers import count_all, counting_here, public_call, tell_process
from portakernel.claims.call_layout import normal_strides
from portakernel.claims.request import PLAIN_FACTS, Phase
from portakernel.contract import Contract
from portakernel.contracts import contracts
from portakernel.errors import ArgumentValueError, ConfigError
from portakernel.host import recording_file
from portakernel.host.locks import make_lock
from portakernel.tensors.layout import layout_facts
from portakernel.tensors.torch_internals import is_fake
from portakernel.torch_bridge.signature import Signature

if TYPE_CHECKING:
    from portakernel.calling.bound_kernel import BoundKernel


class CallKinds:
    """Counts calls by kind, from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._traced = set[str]()
        self._lock = make_lock()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add_traced(self, op: str) -> None:
        """Takes note that calls of the op were traced."""
        self._traced.add(op)

    def add(self, contract: Contract, tensors: Sequence[Any], values: Sequence[Any], *, phase: Phase) -> None:
        """Counts a call by its tensors, in the contract's order, and the values of its parameters; of which phase."""
        pairs = [(n, t) for n, t in zip(contract.names, tensors, strict=True) if isinstance(t, Tensor)]
        if is_fake([tensor for _, tensor in pairs]):
            return  # a tracer's: the real call comes when what it makes is run
        parameters = {
            parameter.name: list(value) if isinstance(value, tuple) else value
            for parameter, value in zip(contract.parameters, values, strict=True)
            if value != parameter.default
        }
        layout, strides = _memory(pairs)
        entry: dict[str, Any] = {
            "op": contract.op,
            "dtype": {name: dtype_name(tensor.dtype) for name, tensor in pairs},
            "shape": {name: [int(size) for size in tensor.shape] for name, tensor in pairs},
            **({"layout": layout} if layout else {}),
            **({"strides": strides} if strides else {}),
            **({"parameters": parameters} if parameters else {}),
            **({str(phase): True} if phase is not Phase.INFERENCE else {}),
        }
        with self._lock:
            self._counts[recording_file.line(entry)] += 1

    def taken(self) -> tuple[Counter[str], set[str]]:
        """What was counted since the last time, and the ops that were traced."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            traced, self._traced = self._traced, set()
        return counts, traced

    def forget(self) -> None:
        """Forgets what was counted: a forked process has its parent's counts."""
        self._counts, self._traced, self._lock = Counter(), set(), make_lock()


class _Mode(TorchDispatchMode):
    """While active, counts each portakernel op that is called; a call under a mode goes through ``torch.ops``.

    A bound handle is called as ever, and tells of it (``calling.observers``).
    """

    looks_for_choices = True

    def __init__(self, kinds: CallKinds) -> None:
        super().__init__()
        self._kinds = kinds
        self._parts: dict[str, tuple[Signature, bool]] = {}
        for contract in contracts().values():
            signature, name = Signature(contract), f"portakernel::{contract.op}"
            self._parts |= {name: (signature, False), f"{name}_forward": (signature, True)}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Functions that ``torch.compile`` compiles are compiled as ever, and seen when what was made of them runs."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs ``func``, and counts it."""
        found = func(*args, **(kwargs or {}))
        if (part := self._parts.get(func.name())) is not None:
            signature, training = part
            tensors, values, _ = signature.forward(args) if training else signature.public(args)
            phase = Phase.TRAINING if training else Phase.INFERENCE
            self._kinds.add(signature.contract, tensors, values, phase=phase)
        return found


@contextmanager
def counting(path: Path) -> Iterator[None]:
    """Writes the kinds of calls that this thread makes inside the block into a file.

    Raises:
        OSError: the file cannot be written, at the block's end.
    """
    kinds = CallKinds()
    try:
        with counting_here(kinds), _Mode(kinds):
            yield
    finally:
        if kinds:  # what is there stays until there is another
            recording_file.put(path, *kinds.taken())


def watched(function: Callable[..., Any], contract: Contract) -> Callable[..., Any]:
    """A public function whose calls the process's record counts, as they reach a kernel."""
    positional = [tensor.name for tensor in contract.tensors if not tensor.keyword]

    @functools.wraps(function)
    def call(*tensors: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*tensors, **named)  # counted when the graph runs
        with public_call(contract.op) as under_way:
            found = function(*tensors, **named)
        if not under_way.is_counted:
            given = {**dict(zip(positional, tensors, strict=False)), **named}
            passed = [given.get(name) for name in contract.names]
            values = [contract.value(p.name, given.get(p.name, p.default)) for p in contract.parameters]
            recorded = torch.is_grad_enabled() and contract.gradient != "none"
            training = recorded and any(isinstance(t, Tensor) and t.requires_grad for t in passed)
            tell_process(contract, passed, values, phase=Phase.TRAINING if training else Phase.INFERENCE)
        return found

    return call


def watched_handle(bound: BoundKernel, contract: Contract, values: Sequence[Any]) -> BoundKernel:
    """A bound handle whose calls the process's record counts; ``values`` are the example's parameters."""
    positional = [tensor.name for tensor in contract.tensors if not tensor.keyword]

    @functools.wraps(bound)
    def call(*tensors: Any, **named: Any) -> Any:
        found = bound(*tensors, **named)
        if not torch.compiler.is_compiling():
            given = {**dict(zip(positional, tensors, strict=False)), **named}
            pairs = zip(contract.parameters, values, strict=True)
            asked = [contract.value(p.name, given[p.name]) if p.name in given else value for p, value in pairs]
            tell_process(contract, [given.get(name) for name in contract.names], asked)
        return found

    return cast("BoundKernel", call)


@functools.cache
def count_process(named: str) -> None:
    """Counts the process's calls from now on, and adds them to the file when it ends, or one that is forked from it.

    What cannot be added, because the file has become another one since, is written beside it.

    Raises:
        ConfigError: what is there is no recording, or cannot be read.
    """
    path, kinds, ending = Path(named), CallKinds(), threading.Event()
    try:
        recording_file.counted(path)
    except ArgumentValueError as error:
        raise ConfigError(f"PORTAKERNEL_RECORD: {error}, or leave it unset") from error
    except OSError as error:
        raise ConfigError(f"PORTAKERNEL_RECORD: {path} cannot be read: {error.strerror}") from error
    count_all(kinds)

    def write() -> None:
        ending.set()
        counts, traced = kinds.taken()
        if not counts and not traced:
            return
        try:
            recording_file.add(path, counts, traced)
        except ArgumentValueError as error:
            beside = path.with_name(f"{path.name}.{os.getpid()}.yaml")
            recording_file.put(beside, counts, traced)
            sys.stderr.write(f"portakernel: PORTAKERNEL_RECORD: {error}; this process's calls are in {beside}\n")

    def write_and_end(number: int, _: object) -> None:
        if ending.is_set():  # it writes, and ends then
            return
        signal.signal(number, signal.SIG_DFL)
        try:
            write()
        finally:
            os.kill(os.getpid(), number)

    def in_worker(_: object = None) -> None:
        # multiprocessing's forked workers end without atexit, and drop their parent's finalizers when they start
        util.Finalize(None, write, exitpriority=0)

    # what stops a service ends Python without atexit; a program that looks at the signal itself keeps it so
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, write_and_end)
    atexit.register(write)
    os.register_at_fork(after_in_child=kinds.forget)
    in_worker()
    util.register_after_fork(kinds, in_worker)


def _memory(pairs: Iterable[tuple[str, Tensor]]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """The layout facts of tensors that are not those of plain memory, and the strides of those that have gaps."""
    facts, strides = dict[str, int](), dict[str, list[int]]()
    for name, tensor in pairs:
        off = {n: v for n, v in layout_facts(name, tensor).items() if v != PLAIN_FACTS[n.partition(".")[2]]}
        facts |= off
        if off.keys() - {f"{name}.alignment"}:
            strides[name] = list(normal_strides(tensor.shape, tensor.stride()))
    return facts, strides
