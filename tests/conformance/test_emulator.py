"""The emulator as a place where the kit runs kernels: an outsider's Triton kernel, right and with planted faults."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
from cxx import HAS_CXX

from portakernel import runtime
from portakernel.contract.case import Case
from portakernel.words.target import Target
from portakernel_kit.conformance import emulator, runner
from portakernel_kit.conformance.drawn import trying
from portakernel_kit.conformance.drawn.trying import Drew, Job
from portakernel_kit.conformance.observing.isolation import Asked
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.unit import Unit
from portakernel_kit.conformance.unit_processes import UnitsJob
from portakernel_kit.conformance.venue import Emulated, Unavailable, Venue, find_venue
from portakernel_kit.conformance.written import forward_of

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]
WHERE = Emulated(Target("amd", "gfx942"))
MANIFEST = """\
schema_version: 1
plugin: acme
defaults:
  targets: {amd: [gfx942]}
  properties: {deterministic: true}
"""
KERNELS = """\
kernels:
  - op: add
    entry: HERE.kernels:add
    dtypes: {x: [float32], y: [x]}
    limits:
      x.contiguous: {in: [true]}
      y.contiguous: {in: [true]}
"""
OFFLINE = "offline: HERE.kernels:compiling\n"
SOURCE = """\
import torch
import triton
import triton.language as tl

from portakernel.authoring.triton import cdiv, compiling, launch


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n{last}) + tl.load(y + at, mask=at < n), mask=at < n)


def add(x, y, *, out=None):
    made = torch.empty_like(x) if out is None or not out.is_contiguous() else out
    if {launches} and x.numel():
        launch(_add, (cdiv(x.numel(), 256), 1), x, y, made, x.numel(), BLOCK=256, num_warps=1)
    elif x.numel():
        torch.add(x, y, out=made)
    return made if out is None or made is out else out.copy_(made)
"""


@pytest.fixture
def acme(with_acme, tmp_path):
    """A dispatcher with ``acme.add``, whose module each test has anew."""

    def make(
        *, last: str = "", launches: str = "True", offline: str = OFFLINE, plain: bool = False, endless: bool = False
    ):
        folder = tmp_path / f"acme_{tmp_path.name}"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "plugin.yaml").write_text((MANIFEST + offline + KERNELS).replace("HERE", folder.name))
        source = SOURCE.format(last=last, launches=launches)
        if plain:
            source = source.replace("launch(_add, (cdiv(x.numel(), 256), 1), ", "_add[cdiv(x.numel(), 256),](")
            assert "_add[" in source
        if endless:
            loop = "    while tl.load(x) < 1e30:\n        tl.store(out, 1.0)\n"
            source = source.replace("BLOCK: tl.constexpr):\n", f"BLOCK: tl.constexpr):\n{loop}")
            assert loop in source
        (folder / "kernels.py").write_text(source)
        return with_acme(folder)

    return make


def results_of(now):
    """The results of acme's kernel in the op's first cases, and where they are from."""
    kernel = now.registry.kernels["acme.add"]
    venue = find_venue(now, kernel, WHERE)
    assert isinstance(venue, Venue)
    suite = Suite(now, kernel, venue, 7)
    units = [unit for unit in suite.units() if unit.kind == "case" and suite.would_run(unit)]
    told = [unit for unit in suite.units() if unit.kind == "instructions"]
    return [result for unit in (*units[:4], *told) for result in suite.run(unit)], venue


@pytest.fixture
def checked(acme):
    """``results_of`` the kernel with faults."""
    return lambda **faults: results_of(acme(**faults))


@pytest.mark.parametrize("plain", [False, True], ids=["launched by portakernel", "launched by Triton"])
def test_a_right_kernel_passes_and_its_results_name_the_emulated_target(checked, plain):
    results, venue = checked(plain=plain)
    assert [str(result) for result in results if result.status != "passed"] == []
    assert {(result.device, result.mode) for result in results} == {("amd:gfx942 (emulated)", "emulated")}
    assert venue.emulator is not None
    assert venue.emulator.launched >= len({result.case for result in results})


def test_the_plugin_that_is_shown_is_emulated(with_acme, tmp_path):
    page = (Path(__file__).parents[2] / "docs/emulation.md").read_text(encoding="utf-8")
    folder = tmp_path / f"acme_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name in ("plugin.yaml", "add.py"):
        text = page.partition(f"# portakernel_acme/{name}\n")[2].partition("```")[0]
        (folder / name).write_text(text.replace("portakernel_acme", folder.name))
    results, venue = results_of(with_acme(folder))
    assert [str(result) for result in results if result.status != "passed"] == []
    assert venue.emulator is not None
    assert venue.emulator.launched >= len({result.case for result in results}) > 3


def test_the_last_result_says_of_each_instruction_of_the_kernel_whether_it_was_executed(checked):
    results, _ = checked()
    told, others = results[-1], results[:-1]
    assert (told.case, told.aspect, told.status) == ("add[instructions]", "coverage", "passed")
    assert {"v_add_f32", "s_endpgm"} <= {name for name, executed in told.instructions.items() if executed}
    assert told.to_json()["instructions"] == told.instructions
    assert all("instructions" not in result.to_json() for result in others)


def test_one_element_past_the_end_fails_though_every_number_is_right(checked):
    results, _ = checked(last=" + 1")
    failed = [result for result in results if (result.aspect, result.status) == ("forward", "failed")]
    assert failed
    assert all("past the end of x" in result.detail and "kernels.py:11" in result.detail for result in failed)


def test_a_kernel_that_launches_nothing_is_not_taken_for_emulated(checked):
    results, _ = checked(launches="False")
    claims = {result.detail for result in results if result.status == "failed"}
    assert claims == {"the call launched nothing: no machine code was emulated (seed 7)"}


GIVEN_UP = (
    "left out: 3 calls of this kernel did not come to their end (an endless loop, more instructions than the budget of "
    "a wave, or a deadlock)"
)


@pytest.fixture
def endless(acme, monkeypatch):
    """A dispatcher whose kernel loops for ever, and is given few instructions to do so."""
    monkeypatch.setattr(emulator, "emulating", functools.partial(emulator.emulating, budget=2000))
    return acme(endless=True)


def test_after_three_calls_without_an_end_the_kernels_others_are_left_out(endless):
    results, venue = results_of(endless)
    failed = [result for result in results if result.status == "failed"]
    assert len(failed) == 3
    assert all("an endless loop, or more than 2000 instructions of a wave: " in result.detail for result in failed)
    left = [result for result in results if result.aspect == "claim"]
    assert len({result.case for result in left}) > 1
    assert {(result.status, result.detail) for result in left} == {("skipped", GIVEN_UP)}
    assert venue.emulator is not None
    assert venue.emulator.endless == 3


def test_the_calls_of_other_processes_count_too(endless, tmp_path):
    kernel = endless.registry.kernels["acme.add"]
    asked = Asked.of(endless, kernel, WHERE)
    suite = Suite(*asked.placed(), 7)
    places = tuple(p for p, unit in enumerate(suite.units()) if unit.kind == "case" and suite.would_run(unit))
    taken = tmp_path / "taken"
    taken.mkdir()
    first, second = (list(UnitsJob(asked, 7, some, taken).events()) for some in (places[:3], places[3:6]))
    statuses = [[event.status for event in events if isinstance(event, Result)] for events in (first, second)]
    assert statuses[0].count("failed") == 3
    assert statuses[1] == ["skipped"] * 3
    assert {event.detail for event in second if isinstance(event, Result)} == {GIVEN_UP}


def test_no_more_requests_are_drawn_for_a_kernel_that_is_given_up(endless, monkeypatch):
    monkeypatch.setattr(trying, "bound_memory", lambda: None)  # other tests run in this process, too
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    asked = Asked.of(endless, endless.registry.kernels["acme.add"], WHERE)
    drew = [event for event in Job((asked,), 7, 600.0).events() if isinstance(event, Drew)]
    results = [result for event in drew for result in event.results]
    assert GIVEN_UP in {result.detail for result in results}
    assert len(drew) <= 4  # the first one made smaller


def test_what_cannot_be_emulated_says_why(acme):
    now = acme(offline="")
    kernel = now.registry.kernels["acme.add"]
    module = kernel.entry.partition(":")[0]
    reason = (
        "the manifest of plugin acme names no `offline`, which compiles its kernels for amd:gfx942: where they are in "
        f"Triton, write `from portakernel.authoring.triton import compiling` in {module} and "
        f"`offline: {module}:compiling` in the manifest (in HIP C++: from portakernel.authoring.native)"
    )
    assert find_venue(now, kernel, WHERE) == Unavailable(reason)
    elsewhere = Emulated(Target("amd", "gfx1100"))
    assert find_venue(now, kernel, elsewhere) == Unavailable("serves amd gfx942, not amd:gfx1100")
    (result,) = runner.run(now, kernel, find_venue(now, kernel, WHERE), seed=1)
    assert (result.status, result.detail) == ("skipped", reason)


@pytest.mark.parametrize(("name", "computes"), [("no tokens", False), ("first and last slot", True)])
def test_a_call_that_has_nothing_to_write_need_not_launch_anything(name, computes):
    now = runtime.dispatcher()
    kernel = now.registry.kernels["triton.write_latent_cache"]
    venue = find_venue(now, kernel, WHERE)
    assert isinstance(venue, Venue)
    assert venue.emulator is not None
    suite = Suite(now, kernel, venue, 7)
    unit = next(unit for unit in suite.case_units if unit.case is not None and unit.case.name == name)
    results = list(suite.run(unit))
    assert [str(result) for result in results if result.status != "passed"] == []
    assert {result.aspect for result in results} >= {"forward", "written"}
    assert (venue.emulator.launched > 0) == computes
    assert forward_of(suite._trial(unit.case, dict(unit.dtypes))).computes() == computes


@pytest.mark.parametrize("terms", [0, 64])
def test_a_call_of_an_empty_argument_need_not_launch_anything(terms):
    """Of K = 0 all sums are 0: the weight that the kernel decodes is empty, and torch multiplies it."""
    now = runtime.dispatcher()
    kernel = now.registry.kernels["triton.int4_mm_decoded"]
    venue = find_venue(now, kernel, WHERE)
    assert isinstance(venue, Venue)
    assert venue.emulator is not None
    case = Case(
        "drawn", leading=(3,), dims={"K": terms, "N": 8, "G": max(1, terms // 32)},
        parameters={"layout": "gptq", "group": 32, "zero": "none"}, backward=False, present=("bias",),
    )  # fmt: skip
    dtypes = {"x": "bfloat16", "weight": "int32", "scales": "float32", "bias": "bfloat16"}
    results = list(Suite(now, kernel, venue, 7).run(Unit("drawn", "drawn", case, tuple(dtypes.items()))))
    assert [str(result) for result in results if result.status != "passed"] == []
    assert {result.aspect for result in results} >= {"forward", "out"}
    assert (venue.emulator.launched > 0) == (terms > 0)
