"""Mutants of the engine: one handler wrong at a time, and whether the comparison with the reference notices.

``python tests/emulation/mutants.py`` makes five mutants of each handler (sources exchanged, the last bit turned, the
first one lost, lanes disturbed, one left out; for handlers that are no functions of lanes: sources exchanged, an offset
too large, the next destination, a source in the place of another, a bit of the result and SCC turned), runs cases of
its instruction on each, and prints how many mutants were noticed, how many handlers have a noticed one, and which have
none. ``--cases``: of an instruction; ``--sample``: handlers drawn instead of all; ``--arch``: on these only; ``--judge``:
the reference, or ``tests`` of handlers that have no pseudocode (tests/emulation/tested_mutants.py); ``--json FILE`` writes
what `python -m portakernel_pages.emulated FILE` takes into docs/emulation.md.

Exchanged sources of a sum change nothing: a mutant that leaves what the sound engine leaves in these cases and in up to
ten more, which are run on the engine alone, counts as ``equal``; one that differs there and was not noticed is missed.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isa_reference.bench import Batch, difference, initial
from isa_reference.cases import cases
from isa_reference.documents import TABLES, Instruction, instructions, pseudocode
from isa_reference.execute import execute
from isa_reference.state import State
from isa_reference.syntax import NotPseudocodeError

from portakernel.emulation import build

_MORE = 10
_ARCHS = ("gfx942", "gfx1201", "gfx1100", "gfx950", "gfx90a")


def mutable_engine() -> ctypes.CDLL:
    """The engine's own objects, linked with what changes handlers."""
    import shutil

    compiler, _version = build._compiler()
    flags = (*build._FLAGS, *build._machine_flags())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(build._FOLDER, folder / "engine")
        shutil.copy(Path(__file__).with_name("mutated_engine.cpp"), folder / "engine" / "mutated_engine.cpp")
        kept = build._FOLDER
        build._FOLDER = folder / "engine"
        try:
            names = sorted(path.name for path in build._FOLDER.glob("*.cpp"))
            content = build._compile(compiler, flags, names)
        finally:
            build._FOLDER = kept
        path = folder / "mutable.so"
        path.write_bytes(content)
        library = ctypes.CDLL(str(path))
    library.emulate.argtypes = [ctypes.c_void_p]
    library.handler.argtypes = [ctypes.c_char_p]
    library.handler_name.argtypes = [ctypes.c_int]
    library.handler_name.restype = ctypes.c_char_p
    return library


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
    library = mutable_engine()
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
            sound, _ = batch.run(at, state, library)
            if not difference(case, expected, sound):
                prepared.append((batch, at, state, expected, sound))
        more = [
            (batch, at, state := initial(batch.cases[at]), batch.run(at, state, library)[0])
            for batch, at in some[count:]
        ]
        if prepared:
            _mutate(library, name, prepared, more, tally)
    return tally


def _mutate(
    library: Any, name: str, prepared: Sequence[tuple[Batch, int, State, State, State]],
    more: Sequence[tuple[Batch, int, State, State]], tally: Tally,
) -> None:  # fmt: skip
    index = library.handler(name.encode())
    tally.handlers.add(name)
    for kind in range(library.mutant_kinds()):
        library.mutate(index, kind)
        changed = noticed = False
        for batch, at, state, expected, sound in prepared:
            got, findings = batch.run(at, state, library)
            case = batch.cases[at]
            changed |= bool(findings) or bool(difference(case, sound, got)) or bool((sound.vector != got.vector).any())
            if findings or difference(case, expected, got):
                noticed = True
                break
        for batch, at, state, sound in () if noticed or changed else more:
            got, findings = batch.run(at, state, library)
            if findings or difference(batch.cases[at], sound, got):
                changed = True
                break
        library.mutate(0, 0)
        if noticed:
            tally.noticed += 1
            tally.caught.add(name)
        elif changed:
            tally.missed.append(f"{name} {kind}")
        else:
            tally.equal += 1


def main(tested: Callable[[], Tally]) -> int:
    """The command; its status is 1 where a mutant that changes results is not noticed. ``tested`` judges by tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", action="append", choices=_ARCHS)
    parser.add_argument("--judge", action="append", choices=("reference", "tests"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = list(build.known_instructions())
    rows = []
    if given.judge is None or "tests" in given.judge:
        rows.append(_told("tests of their own", tested(), ()))
    if given.judge is None or "reference" in given.judge:
        drawn = random.Random(given.seed).sample(names, given.sample) if given.sample else names
        by = f"the pseudocode, {given.cases} cases of each" + (", handlers drawn" if given.sample else "")
        rows.append(_told(by, run(given.arch or _ARCHS, drawn, given.cases), drawn))
    if given.json:
        given.json.write_text(json.dumps({"mutants": rows}))
    return int(any(row["missed"] for row in rows))


def _told(by: str, tally: Tally, names: Sequence[str]) -> dict[str, Any]:
    """Prints what came of mutants; the same as a row of JSON."""
    print(f"{by}: {len(tally.handlers)} handlers; {len(tally.caught)} have a mutant that is noticed")
    print(f"{tally.noticed} mutants noticed, {len(tally.missed)} not ({tally.rate:.1%}); {tally.equal} change nothing")
    print("without a noticed mutant:", ", ".join(sorted(tally.handlers - tally.caught)) or "none")
    print("without cases:", ", ".join(sorted(set(names) - tally.handlers)) or "none")
    for one in tally.missed:
        print("  missed:", one, flush=True)
    return {
        "by": by, "handlers": len(tally.handlers), "noticed": tally.noticed, "missed": tally.missed, "equal": tally.equal,
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip
