"""What was proven of kernels, and where: outcomes of `portakernel compile`, `check` and `bench`, as they were recorded.

A manifest claims; a proof says that a kernel was compiled for a target or ran on one, with what, on which day and in
which dtypes. Its four kinds say different things: *compiled*, that the kernel's compiler makes code for the target;
*native*, that the instruction which the claim implies is in that code; *emulated*, that the code gave right results in
an emulator of such hardware (``check --emulate``); *ran*, that it did on the hardware.

``python -m portakernel_pages.proofs`` records those of portakernel's own kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from portakernel.contract import Contract
from portakernel.contracts import contracts
from portakernel.errors import ArgumentValueError
from portakernel.host.json_file import read_json
from portakernel.registry.kernel import Kernel
from portakernel.words.dtypes import DTYPES, SCALE_FORMATS

Kind = Literal["compiled", "native", "emulated", "ran"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RECORD = Path(__file__).with_name("proofs.json")

# A case as the kit names it, `rms_norm[sliced rows, x=bfloat16, weight=float32]`, and a call as the compiler is given
# it, `triton.rms_norm for amd:gfx942 (sliced rows, bfloat16, float32)`.
_CASE = re.compile(r"\w+\[(?P<case>.*?)(?P<dtypes>(?:, \w+=\w+)+)\]")
_CALL = re.compile(rf"\S+ for \S+ \((?P<case>.*?)(?P<dtypes>(?:, (?:{'|'.join(DTYPES)}))+)\)")


@dataclass(frozen=True, slots=True)
class Proof:
    """One kernel proven on one target, in the dtypes and scale formats that were tried.

    ``by`` is the command: `check` runs every case of the conformance kit, `check --emulate` in the emulator, `bench`
    compares what it measures with the reference. ``device`` is empty where nothing ran; ``versions`` are those of what
    the kernel was made with. So many ``requests`` that ``seeds`` have drawn were right as well.
    """

    kernel: str
    target: str
    kind: Kind
    by: str
    dtypes: tuple[str, ...]
    formats: tuple[str, ...] = ()
    date: str = ""
    device: str = ""
    versions: str = ""
    requests: int = 0
    seeds: tuple[int, ...] = ()

    @property
    def told(self) -> str:
        """By what, on what and when, for people."""
        drawn = f"{self.requests} drawn requests (seed {', '.join(map(str, self.seeds))})" if self.requests else ""
        return ", ".join(filter(None, (f"portakernel {self.by}", self.device, self.versions, drawn, self.date)))


def recorded(path: Path = RECORD) -> tuple[Proof, ...]:
    """The proofs that a file holds; those of portakernel's own kernels without one."""
    rows: list[dict[str, Any]] = read_json(path)
    for row in rows:
        row |= {key: tuple(row.get(key, ())) for key in ("dtypes", "formats", "seeds")}
    return tuple(Proof(target=target, **row) for row in rows for target in row.pop("targets"))


def merged(known: Iterable[Proof], new: Sequence[Proof]) -> tuple[Proof, ...]:
    """``known`` with ``new`` in the place of what the same command said of the same kernel on the same target.

    Two that differ in their seeds alone, but for what they tried, are added up.
    """
    before = tuple(known)
    anew = {(proof.kernel, proof.target, proof.by) for proof in new}
    earlier = {(proof.kernel, proof.target, proof.by, proof.kind): proof for proof in before}
    added = (_added(earlier.get((proof.kernel, proof.target, proof.by, proof.kind)), proof) for proof in new)
    return (*(proof for proof in before if (proof.kernel, proof.target, proof.by) not in anew), *added)


def _added(earlier: Proof | None, proof: Proof) -> Proof:
    seeds = tuple(sorted((*(earlier.seeds if earlier is not None else ()), *proof.seeds)))
    if earlier is None or len({*seeds}) < max(len(seeds), 1):
        return proof
    dtypes = _in_order(DTYPES, (*earlier.dtypes, *proof.dtypes))
    formats = _in_order(SCALE_FORMATS, (*earlier.formats, *proof.formats))
    tried: dict[str, Any] = {"dtypes": dtypes, "formats": formats, "seeds": seeds}
    total = replace(proof, requests=earlier.requests + proof.requests, **tried)
    return total if replace(earlier, requests=total.requests, **tried) == total else proof


def read_output(path: Path, kernels: Mapping[str, Kernel]) -> tuple[Proof, ...]:
    """What a command's JSON, kept in a file, proves of ``kernels``; those that failed there prove nothing.

    Raises:
        ArgumentValueError: it is not what `compile`, `check` or `bench` print.
    """
    try:
        output = read_json(path)
    except (OSError, ValueError) as error:
        raise ArgumentValueError(f"{path}: needs {_OUTPUTS}; it cannot be read: {error}") from error
    if not isinstance(output, dict):
        raise ArgumentValueError(
            f"{path}: needs {_OUTPUTS}; this is no object with keys, but a {type(output).__name__}"
        )
    readers = {"outcomes": _compiled, "results": _checked, "cells": _benchmarked}
    reader = next((reader for key, reader in readers.items() if key in output), None)
    if reader is None or "circumstances" not in output:
        raise ArgumentValueError(f"{path}: needs {_OUTPUTS}; this has the keys {', '.join(output) or '(none)'}")
    return tuple(reader(output, kernels))


_OUTPUTS = "what `portakernel compile`, `check` or `bench` print with --json"


def _compiled(output: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Iterator[Proof]:
    """A call was compiled for a target: what stands for its dtypes and formats, and for no others."""
    for (name, target), outcomes in _by_place(output["outcomes"], lambda row: row["target"]).items():
        tried = [outcome for outcome in outcomes if outcome["verdict"] != "unclaimed"]
        if name not in kernels or any(outcome["verdict"] == "fails" for outcome in tried):
            continue
        for kind, verdicts in _VERDICTS.items():
            found = [_CALL.fullmatch(outcome["call"]) for outcome in tried if outcome["verdict"] in verdicts]
            if found:
                yield _proof(kernels[name], target, kind, "compile", found, output)


_VERDICTS: Mapping[Kind, tuple[str, ...]] = {"compiled": ("compiles", "native"), "native": ("native",)}


def _checked(output: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Iterator[Proof]:
    """Cases whose results were right on a device of the target, or in the emulator; another mode proves nothing."""
    ran = [row for row in output["results"] if row["mode"] is None and row["device"]]
    yield from _checked_by(ran, "ran", "check", output, kernels)
    emulated = [row for row in output["results"] if row["mode"] and (row["device"] or "").endswith(_EMULATED)]
    yield from _checked_by(emulated, "emulated", "check --emulate", output, kernels)


# How the place ends that `check --emulate` reports; before it stands the target.
_EMULATED = " (emulated)"


def _checked_by(
    rows: Sequence[Mapping[str, Any]], kind: Kind, by: str, output: Mapping[str, Any], kernels: Mapping[str, Kernel]
) -> Iterator[Proof]:
    for (name, target), results in _by_place(rows, lambda row: row["device"].partition(" ")[0]).items():
        if name not in kernels or any(result["status"] == "failed" for result in results):
            continue
        passed = [row["case"] for row in results if (row["aspect"], row["status"]) == ("forward", "passed")]
        found = [call for call in map(_CASE.fullmatch, passed) if call is not None]
        requests = sum(call["case"].startswith("drawn ") for call in found) if output.get("drawn") else 0
        if found:
            proof = _proof(kernels[name], target, kind, by, found, output)
            yield replace(proof, requests=requests, seeds=(output["seed"],) if requests else ())


def _benchmarked(output: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Iterator[Proof]:
    """Calls whose results agreed with the reference's before they were timed."""
    known = output["circumstances"]
    rows = [
        {**row, "dtypes": list(cell["dtypes"].values()), "values": list(map(str, cell["values"].values()))}
        for cell in output["cells"]
        if cell["checked_against"]
        for row in cell["kernels"]
    ]
    for (name, target), measured in _by_place(rows, lambda row: known["target"]).items():
        timed = [row for row in measured if row["status"] == "timed"]
        if name not in kernels or not timed or any(row["status"] in ("wrong", "failed") for row in measured):
            continue
        dtypes = _in_order(DTYPES, (name for row in timed for name in row["dtypes"]))
        formats = _in_order(SCALE_FORMATS, (value for row in timed for value in row["values"]))
        yield Proof(name, target, "ran", "bench", dtypes, formats, *_told(kernels[name], output))


def _by_place(rows: Iterable[Any], target: Callable[[Any], str]) -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        found.setdefault((row["kernel"], target(row)), []).append(row)
    return found


def _proof(
    kernel: Kernel,
    target: str,
    kind: Kind,
    by: str,
    calls: Sequence[re.Match[str] | None],
    output: Mapping[str, Any],
) -> Proof:
    """The proof that cases of the kernel's op are, each found in a text that ends with its dtypes.

    Before them, the text of one that was drawn has its formats.
    """
    described = contracts()[kernel.op]
    known = [call for call in calls if call is not None]
    names = {text.rpartition("=")[2] for call in known for text in call["dtypes"].split(", ")}
    names |= {name for case in {call["case"] for call in known} for name in _formats(described, case)}
    tried = _in_order(DTYPES, names), _in_order(SCALE_FORMATS, names)
    return Proof(kernel.name, target, kind, by, *tried, *_told(kernel, output))


def _formats(contract: Contract, case: str) -> Iterator[str]:
    """The scale formats of a case of the op; none of one that the kit has made."""
    given = next((known.parameters for known in contract.cases if known.name == case), None)
    for parameter in contract.parameters:
        if parameter.kind == "format" and given is not None:
            yield str(given.get(parameter.name, parameter.default))


def _in_order(known: Iterable[str], found: Iterable[str]) -> tuple[str, ...]:
    names = frozenset(found)
    return tuple(name for name in known if name in names)


def _told(kernel: Kernel, output: Mapping[str, Any]) -> tuple[str, str, str]:
    """Date, device and the versions of what the kernel is made with."""
    known = output["circumstances"]
    wanted = dict.fromkeys((*kernel.requires, "torch") if known.get("device") else kernel.requires)
    versions = [f"{name} {known['versions'][name]}" for name in wanted if name in known["versions"]]
    return known["date"][:10], known.get("device") or "", ", ".join(versions)
