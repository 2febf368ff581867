"""Mutants of the engine: one handler wrong at a time, and whether the comparison with the reference notices.

Each handler has five mutants: sources exchanged, the last bit turned, the first one lost, lanes disturbed, one left
out; for handlers that are no functions of lanes: sources exchanged, an offset too large, the next destination, a source
in the place of another, a bit of the result and SCC turned.

Exchanged sources of a sum change nothing: a mutant that leaves what the sound engine leaves in these cases and in up to
ten more, which are run on the engine alone, counts as ``equal``; one that differs there and was not noticed is missed.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from isa_reference.bench import Batch, difference, initial
from isa_reference.cases import cases
from isa_reference.documents import TABLES, Instruction, instructions, pseudocode
from isa_reference.execute import execute
from isa_reference.state import State
from isa_reference.syntax import NotPseudocodeError
from portakernel.emulation import build

_MORE = 10
ARCHS = ("gfx942", "gfx1201", "gfx1100", "gfx950", "gfx90a")


class MutableEngine:
    """An engine of its own, each of whose handlers can be made wrong; ``library`` runs as the sound one does."""

    def __init__(self) -> None:
        command, _version = build.compiler()
        source = Path(__file__).with_name("wrong_handlers.cpp")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "wrong.so")
            subprocess.run([*command, f"-I{build.FOLDER}", "-shared", str(source), "-o", str(path)], check=True)
            self._wrong = ctypes.CDLL(str(path))
        self._wrong.mutate.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        self.library = build.loaded()
        self.kinds = range(int(self._wrong.mutant_kinds()))

    @contextmanager
    def mutated(self, name: str, kind: int) -> Iterator[None]:
        """Within this context the handler of that name is wrong in one way."""
        table = self.library.handler_table()
        self._wrong.mutate(table, self.library.handler(name.encode()), kind)
        try:
            yield
        finally:
            self._wrong.mutate(table, 0, 0)


@dataclass(slots=True)
class Tally:
    """Mutants that were noticed, were not, and change nothing that cases show; handlers by their names."""

    noticed: int = 0
    missed: list[str] = field(default_factory=list)
    equal: int = 0
    handlers: set[str] = field(default_factory=set)
    caught: set[str] = field(default_factory=set)
    sound: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Of the mutants that change something, the part that was noticed."""
        return self.noticed / max(1, self.noticed + len(self.missed))


def drawn_by_name(archs: Sequence[str], names: Sequence[str], count: int) -> dict[str, list[tuple[Batch, int]]]:
    """For each instruction ``count`` cases on the first architecture that has it."""
    by_name: dict[str, list[tuple[Batch, int]]] = defaultdict(list)
    left = set(names)
    for arch in archs:
        given: dict[str, list[Instruction]] = defaultdict(list)
        for one in instructions(TABLES[arch]):
            if one.name in left:
                given[one.name].append(one)
        drawn = []
        for name in sorted(given):
            some = [case for one in given[name] for case in cases(arch, one, 11)]
            plain = [case for case in some if case.mode == 0xF0 and not case.sdwa]
            first = plain[:2]
            rest = [case for case in plain if case not in first] if len(plain) < 40 else plain[2:]
            random.Random(name).shuffle(rest)
            drawn += [*first, *rest[: 2 * count + _MORE]]
        if not drawn:
            continue
        batch = Batch.of(arch, drawn)
        for at, case in enumerate(batch.cases):
            if case.name in left and len(by_name[case.name]) < count + _MORE:
                by_name[case.name].append((batch, at))
        left -= set(by_name)
    return by_name


def run(archs: Sequence[str], names: Sequence[str], count: int) -> Tally:
    """Mutate the handlers of these instructions, one after the other."""
    engine = MutableEngine()
    tally = Tally()
    for name, some in drawn_by_name(archs, names, count).items():
        prepared: list[tuple[Batch, int, State, State, State]] = []
        for batch, at in some[:count]:
            case = batch.cases[at]
            state = initial(case)
            try:
                expected = execute(case, state, pseudocode(TABLES[case.arch]).get)
            except NotPseudocodeError:
                continue
            sound, _ = batch.run(at, state, engine.library)
            if not difference(case, expected, sound):
                prepared.append((batch, at, state, expected, sound))
        more = [
            (batch, at, state := initial(batch.cases[at]), batch.run(at, state, engine.library)[0])
            for batch, at in some[count:]
        ]
        if prepared:
            _mutate(engine, name, prepared, more, tally)
    return tally


def _mutate(
    engine: MutableEngine, name: str, prepared: Sequence[tuple[Batch, int, State, State, State]],
    more: Sequence[tuple[Batch, int, State, State]], tally: Tally,
) -> None:  # fmt: skip
    tally.handlers.add(name)
    for kind in engine.kinds:
        changed = noticed = False
        with engine.mutated(name, kind):
            for batch, at, state, expected, sound in prepared:
                got, findings = batch.run(at, state, engine.library)
                case = batch.cases[at]
                changed |= bool(findings) or bool(difference(case, sound, got))
                changed |= bool((sound.vector != got.vector).any())
                if findings or difference(case, expected, got):
                    noticed = True
                    break
            for batch, at, state, sound in () if noticed or changed else more:
                got, findings = batch.run(at, state, engine.library)
                if findings or difference(batch.cases[at], sound, got):
                    changed = True
                    break
        if noticed:
            tally.noticed += 1
            tally.caught.add(name)
        elif changed:
            tally.missed.append(f"{name} {kind}")
        else:
            tally.equal += 1
