"""Requests drawn by the hash of the code that they test: every change looks elsewhere, and everybody can repeat it."""

from __future__ import annotations

import hashlib
import math
import subprocess
from functools import cache
from pathlib import Path

import pytest

from portakernel import runtime
from portakernel.words.target import Device
from portakernel_kit.conformance.drawn.requests import Requests
from portakernel_kit.conformance.drawn.spelling import Request
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.venue import Venue, find_venue

REPOSITORY = Path(__file__).parents[2]
# An interpreter takes ten times as long for each.
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
    registry = runtime.dispatcher().registry
    cpu: Device | None = next(iter(registry.devices_on("cpu")), None)
    own = [k for k in registry.kernels.values() if k.first_party and k.build is None]
    found = ((kernel.name, find_venue(runtime.dispatcher(), kernel, cpu)) for kernel in own)
    return {name: venue for name, venue in found if isinstance(venue, Venue)}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", venues())
def test_a_kernel_serves_what_this_tree_draws(name: str) -> None:
    dispatcher, venue = runtime.dispatcher(), venues()[name]
    kernel, seed = dispatcher.registry.kernels[name], tree_seed()
    suite = Suite(dispatcher, kernel, venue, seed)
    # else each pair of levels would be asked for in vain, some 8 s of what no interpreter runs (Hopper's kernels)
    if not any(map(suite.would_run, suite.case_units)):
        pytest.skip(f"serves no case here: {min(map(suite.why_refused, suite.case_units), key=len)}")
    requests, failed = Requests(suite), list[str]()
    place, ran = 0, 0
    while ran < (DRAWS_IN_A_MODE if venue.mode else DRAWS):
        unit = requests.at(place)
        place += 1
        if unit is None or unit.case is None:
            break
        if venue.mode and math.prod(unit.case.leading) > MOST_ROWS_IN_A_MODE:
            continue
        ran += 1
        line = f"portakernel check --one '{Request(name, unit.case, dict(unit.dtypes), seed)}'"
        results = suite.run(unit)
        failed += [f"{result.aspect}: {result.detail}\n{line}" for result in results if result.status == "failed"]
    assert not failed, "\n".join(failed)
