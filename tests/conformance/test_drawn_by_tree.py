"""Requests drawn by the hash of the code that they test: every change looks elsewhere, and everybody can repeat it."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import subprocess
from functools import cache
from pathlib import Path

import pytest
from cxx import HAS_CXX

from portakernel import runtime
from portakernel.emulation.arch import ARCHS
from portakernel.words.target import Device, Target
from portakernel_kit.conformance.drawn.requests import Requests
from portakernel_kit.conformance.drawn.spelling import Request
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.venue import Emulated, Unavailable, Venue, Where, find_venue

REPOSITORY = Path(__file__).parents[2]
# An interpreter takes ten times as long for each, and so does an emulator.
DRAWS, DRAWS_IN_A_MODE = 5, 2
# It runs programs one by one: 42,784 rows of one number, each a program of `softmax_parts`, took seven minutes.
MOST_ROWS_IN_A_MODE = 4096


@cache
def tree_seed() -> int:
    """As `git rev-parse HEAD:portakernel HEAD:plugins | sha256sum | cut -c1-7`, in base 16."""
    command = ["git", "rev-parse", "HEAD:portakernel", "HEAD:plugins"]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    if found.returncode:
        pytest.skip("this is no checkout of git")
    return int(hashlib.sha256(found.stdout).hexdigest()[:7], 16)


@cache
def venues() -> dict[str, Venue]:
    cpu: Device | None = next(iter(runtime.dispatcher().registry.devices_on("cpu")), None)
    return {name: venue for name in own_kernels() if isinstance(venue := venue_of(name, cpu), Venue)}


@cache
def emulated() -> dict[str, tuple[str, Venue]]:
    """By an id: the kernels that are emulated, each on every target that it claims."""
    if importlib.util.find_spec("tinygrad") is None:
        return {}
    targets = [Target("amd", arch) for arch in ARCHS]
    places = [(name, target, venue_of(name, Emulated(target))) for name in own_kernels() for target in targets]
    return {f"{name} on {target}": (name, venue) for name, target, venue in places if isinstance(venue, Venue)}


def own_kernels() -> list[str]:
    return [k.name for k in runtime.dispatcher().registry.kernels.values() if k.first_party and k.build is None]


def venue_of(name: str, where: Where) -> Venue | Unavailable:
    return find_venue(runtime.dispatcher(), runtime.dispatcher().registry.kernels[name], where)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", venues())
def test_a_kernel_serves_what_this_tree_draws(name: str) -> None:
    venue = venues()[name]
    serve(name, venue, DRAWS_IN_A_MODE if venue.mode else DRAWS)


@pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning")
@pytest.mark.turns(30)
@pytest.mark.parametrize("id", emulated())
def test_an_emulated_kernel_serves_what_this_tree_draws(id: str) -> None:
    name, venue = emulated()[id]
    serve(name, venue, 1, f" --emulate {venue.targets[0]}")


def serve(name: str, venue: Venue, draws: int, where: str = "") -> None:
    """So many of the kernel's drawn requests are served as they should be."""
    dispatcher, seed = runtime.dispatcher(), tree_seed()
    suite = Suite(dispatcher, dispatcher.registry.kernels[name], venue, seed)
    # else each pair of levels would be asked for in vain, some 8 s of what no interpreter runs (Hopper's kernels)
    if not any(map(suite.would_run, suite.case_units)):
        pytest.skip(f"serves no case here: {min(map(suite.why_refused, suite.case_units), key=len)}")
    requests, failed = Requests(suite), list[str]()
    place, ran = 0, 0
    while ran < draws:
        unit = requests.at(place)
        place += 1
        if unit is None or unit.case is None:
            break
        if venue.mode and math.prod(unit.case.leading) > MOST_ROWS_IN_A_MODE:
            continue
        ran += 1
        line = f"portakernel check{where} --one '{Request(name, unit.case, dict(unit.dtypes), seed)}'"
        results = suite.run(unit)
        failed += [f"{result.aspect}: {result.detail}\n{line}" for result in results if result.status == "failed"]
    assert not failed, "\n".join(failed)
