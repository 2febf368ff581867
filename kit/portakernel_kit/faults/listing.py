"""The faults of a plugin's kernels, and an even choice of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path

from portakernel.registry.kernel import Kernel
from portakernel_kit.faults.fault import Fault
from portakernel_kit.faults.native_faults import native_faults
from portakernel_kit.faults.python_faults import python_faults
from portakernel_kit.faults.sources import NATIVE, Sources

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Listing:
    """Faults, how many were left out by which rule, and files that cannot be read, each with the reason."""

    faults: tuple[Fault, ...]
    excluded: Counter[str] = field(default_factory=Counter[str])
    unread: tuple[str, ...] = ()


def list_faults(sources: Sources, kernels: Sequence[Kernel]) -> Listing:
    """The faults of every file that one of the kernels reaches, in the order of the files."""
    reached: dict[Path, list[str]] = {}
    for kernel in kernels:
        for file in sources.reached(kernel):
            reached.setdefault(file, []).append(kernel.name)
    found, excluded, unread = list[Fault](), Counter[str](), list[str]()
    for file, names in sorted(reached.items()):
        content, name = file.read_bytes(), sources.name(file)
        if file.suffix in NATIVE:
            faults = native_faults(content, name)
        else:
            try:
                faults, left_out = python_faults(content, name)
            except SyntaxError as error:
                unread.append(f"{name}: {error}")
                continue
            excluded += left_out
        found += [replace(fault, kernels=tuple(names)) for fault in faults]
    return Listing(tuple(found), excluded, tuple(unread))


def faults_of_files(sources: Sources, files: Iterable[str]) -> list[Fault]:
    """Every fault of these files, whichever kernels reach them; of a file that is not there, none."""
    found = list[Fault]()
    for name in sorted(set(files)):
        path = sources.folder / name
        if not path.is_file():
            continue
        if path.suffix in NATIVE:
            found += native_faults(path.read_bytes(), name)
        elif path.suffix == ".py":
            with suppress(SyntaxError):  # which the list of a kernel's faults says
                found += python_faults(path.read_bytes(), name)[0]
    return found


def spread(faults: Iterable[Fault], ops: Callable[[Fault], str], seed: int) -> list[Fault]:
    """All of them, so that the first few are of all ops, files and kinds alike; equal for an equal seed."""
    source = random.Random(seed)
    shuffled = sorted(faults, key=lambda fault: fault.id)
    source.shuffle(shuffled)
    return _in_turn(shuffled, (ops, lambda fault: fault.file, lambda fault: fault.kind))


def _in_turn(faults: Sequence[Fault], keys: Sequence[Callable[[Fault], str]]) -> list[Fault]:
    """One of each group after the other, within each group likewise."""
    if not keys:
        return list(faults)
    groups: dict[str, list[Fault]] = {}
    for fault in faults:
        groups.setdefault(keys[0](fault), []).append(fault)
    rows = zip_longest(*(_in_turn(group, keys[1:]) for group in groups.values()), fillvalue=_NOTHING)
    return [fault for fault in chain.from_iterable(rows) if isinstance(fault, Fault)]
