"""Which kinds of calls a program makes, and how often: ops, dtypes, shapes, layouts, and nothing of what tensors hold.

``portakernel.record`` looks at the calls of a block, through a dispatch mode. Where ``PORTAKERNEL_RECORD`` names a
file, each function of ``portakernel.ops`` counts its calls from the start, in whichever thread, and the file is written
when the process ends. Several processes write into one file, one after the other.
"""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from portakernel.calling.arguments import dtype_name
from portakernel.claims.request import PLAIN_FACTS
from portakernel.contract import Contract
from portakernel.contracts import contracts
from portakernel.deciding.call_layout import normal_strides
from portakernel.host.locks import make_lock
from portakernel.tensors.layout import layout_facts
from portakernel.tensors.torch_internals import is_fake
from portakernel.torch_bridge.signature import Signature

_HEAD = (
    "# Kinds of calls, and how often they were made: for --calls of `portakernel warmup`, `bench`, `tune`.\ncalls:\n"
)


class CallKinds:
    """Counts calls by kind, from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = make_lock()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, contract: Contract, tensors: Sequence[Any], values: Sequence[Any], *, training: bool) -> None:
        """Counts a call by its tensors, in the contract's order, and the values of its parameters."""
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
            **({"training": True} if training else {}),
        }
        with self._lock:
            self._counts[_line(entry)] += 1

    def write(self, path: Path) -> None:
        """Adds what was counted since the last time to the file at ``path``, which is made where there is none.

        Without a call nothing is written.

        Raises:
            OSError: it cannot be read or written.
        """
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        with FileLock(f"{path}.lock"):
            counts.update(_counted(path))
            ordered = sorted(counts.items(), key=lambda kind: (-kind[1], kind[0]))
            lines = (f"  - {kind[:-1]}, count: {count}}}\n" for kind, count in ordered)
            _replace(path, _HEAD + "".join(lines))

    def forget(self) -> None:
        """Forgets what was counted: a forked process has its parent's counts."""
        self._counts, self._lock = Counter(), make_lock()


class _Mode(TorchDispatchMode):
    """While active, counts each portakernel op that is called; a call under a mode goes through ``torch.ops``."""

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
            self._kinds.add(signature.contract, tensors, values, training=training)
        return found


@contextmanager
def counting(path: Path) -> Iterator[None]:
    """Writes the kinds of calls that this thread makes inside the block into a file.

    Raises:
        OSError: the file cannot be written, at the block's end.
    """
    kinds = CallKinds()
    try:
        with _Mode(kinds):
            yield
    finally:
        if kinds:  # what is there stays until there is another
            path.unlink(missing_ok=True)
        kinds.write(path)
        Path(f"{path}.lock").unlink(missing_ok=True)


def watched(function: Callable[..., Any], contract: Contract, path: str) -> Callable[..., Any]:
    """A public function that counts its calls into the process's record at ``path``."""
    kinds = _of_process(path)
    positional = [tensor.name for tensor in contract.tensors if not tensor.keyword]

    @functools.wraps(function)
    def call(*tensors: Any, **named: Any) -> Any:
        found = function(*tensors, **named)
        if torch.compiler.is_compiling():
            return found
        given = {**dict(zip(positional, tensors, strict=False)), **named}
        passed = [given.get(name) for name in contract.names]
        values = [contract.value(p.name, given.get(p.name, p.default)) for p in contract.parameters]
        recorded = torch.is_grad_enabled() and contract.gradient != "none"
        training = recorded and any(isinstance(t, Tensor) and t.requires_grad for t in passed)
        kinds.add(contract, passed, values, training=training)
        return found

    return call


@functools.cache
def _of_process(path: str) -> CallKinds:
    """The process's counts, which are added to the file when it ends, or one that is forked from it."""
    kinds, file = CallKinds(), Path(os.path.abspath(path))

    def write() -> None:
        kinds.write(file)

    def in_worker(_: object = None) -> None:
        # multiprocessing's forked workers end without atexit, and drop their parent's finalizers when they start
        util.Finalize(None, write, exitpriority=0)

    atexit.register(write)
    os.register_at_fork(after_in_child=kinds.forget)
    in_worker()
    util.register_after_fork(kinds, in_worker)
    return kinds


def _memory(pairs: Iterable[tuple[str, Tensor]]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """The layout facts of tensors that are not those of plain memory, and the strides of those that have gaps."""
    facts, strides = dict[str, int](), dict[str, list[int]]()
    for name, tensor in pairs:
        off = {n: v for n, v in layout_facts(name, tensor).items() if v != PLAIN_FACTS[n.partition(".")[2]]}
        facts |= off
        if off.keys() - {f"{name}.alignment"}:
            strides[name] = list(normal_strides(tensor.shape, tensor.stride()))
    return facts, strides


def _line(entry: Mapping[str, Any]) -> str:
    """An entry on a line, as YAML has it."""
    return yaml.safe_dump(dict(entry), default_flow_style=True, sort_keys=False, width=1 << 30).strip()


def _counted(path: Path) -> Counter[str]:
    """The kinds in a file that this module wrote, with their counts; none where there is no file yet."""
    try:
        listed: Iterable[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["calls"]
    except FileNotFoundError:
        return Counter()
    found = Counter[str]()
    for entry in listed:
        count = entry.pop("count", 1)
        found[_line(entry)] += count
    return found


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(name, 0o644)
    os.replace(name, path)
