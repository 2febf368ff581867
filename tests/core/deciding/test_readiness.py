"""Installed, then usable, then able: what is checked when, and what is assumed of a device that is not here."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest

from portakernel.claims.capability import ReasonCode
from portakernel.deciding.readiness import installed_version
from portakernel.words.target import Device, Target

USABLE_CHECK = """\
from portakernel.deciding.readiness import Usable
def check(M):
    return Usable()
"""
READY = """\
from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.deciding.readiness import Usable
asked, notes = [], ['the cache is full; make room']
def ready(device):
    asked.append(device.torch_device)
    {}
"""


def asked(name: str) -> list[str]:
    return importlib.import_module(f"fake_{name}").asked


def probed(world, body: str, *kernels, name: str = "p", **keys):
    world.plugin(name, *kernels, ready=f"fake_{name}:ready", source=READY.format(body), **keys)


def told(decision, name: str) -> list[tuple[str, str]]:
    return [(str(rejection.code), rejection.text) for rejection in decision.candidate(name).rejections]


def test_a_ready_device_is_used_and_nothing_is_assumed(world):
    probed(world, "return None")
    decision = world.dispatcher().decide(world.request(present=True))
    assert decision.chosen.name == "p.add"
    assert decision.candidate("p.add").assumed == ()
    assert asked("p") == ["acme:0"]


def test_a_probes_rejection_is_the_reason(world):
    probed(world, "return Rejection(ReasonCode.MISSING_TOOLCHAIN, 'no compiler')", {"priority": 9})
    world.plugin("q")
    decision = world.dispatcher().decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    assert told(decision, "p.add") == [("missing_toolchain", "no compiler")]


def test_what_a_probe_has_to_say_is_noted_with_the_decision_and_may_grow(world):
    probed(world, "return Usable(notes)")
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(world.request(present=True))
    assert decision.chosen.name == "p.add"
    assert decision.notes == ("the cache is full; make room",)
    assert decision.to_json()["notes"] == ["the cache is full; make room"]
    assert "  note: the cache is full; make room\n" in str(decision)
    importlib.import_module("fake_p").notes.append("and so is the other")
    assert dispatcher.decide(world.request(present=True)).notes[1:] == ("and so is the other",)
    assert dispatcher.decide(world.request(present=False)).notes == ()


def test_a_check_has_nothing_to_note(world):
    world.plugin("p", {"check": {"entry": "fake_p:check", "reads": ["M"]}}, source=USABLE_CHECK)
    decision = world.dispatcher().decide(world.request(present=True, shapes={"x": (4,), "y": (4,)}))
    ((code, text),) = told(decision, "p.add")
    assert code == "probe_failed"
    assert text.startswith("its check raised PortakernelError: returned Usable(notes=()); it must return None or a")


@pytest.mark.parametrize(
    "body", ["return None", "return Rejection(ReasonCode.DRIVER, 'too old')", "raise OSError('x')"]
)
def test_a_device_is_probed_once_for_all_of_a_plugins_kernels_and_the_answer_kept(world, body):
    probed(world, body, {}, {"name": "second"}, {"op": "rms_norm"})
    world.plugin("q", {}, {"op": "rms_norm"})
    dispatcher = world.dispatcher()
    for op in ("add", "rms_norm", "add"):
        dispatcher.decide(world.request(op, present=True))
    assert asked("p") == ["acme:0"]


def test_each_device_is_probed_for_itself(world):
    probed(
        world,
        "return Rejection(ReasonCode.DRIVER, 'too old') if device.torch_device == 'acme:1' else None",
        {"priority": 9},
    )
    world.plugin("q")
    dispatcher, request = world.dispatcher(), world.request(present=True)
    second = replace(request, device=Device(Target("acme", "acme1"), "Acme 1", "acme:1"))
    chosen = [dispatcher.decide(each).chosen.name for each in (request, second, request)]
    assert chosen == ["p.add", "q.add", "p.add"]
    assert asked("p") == ["acme:0", "acme:1"]


@pytest.mark.parametrize(
    ("body", "words"), [("raise OSError('no driver')", "OSError: no driver"), ("raise SystemExit(3)", "SystemExit: 3")]
)
def test_a_probe_that_raises_is_a_reason_and_keeps_its_traceback(world, body, words):
    probed(world, body, {"priority": 9})
    world.plugin("q")
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    assert told(decision, "p.add") == [("probe_failed", f"its probe raised {words}; see `portakernel doctor`")]
    (fault,) = dispatcher.registry.manager.broken
    assert (fault.package.name, fault.stage, fault.reason) == ("p", "ready", f"fake_p:ready raised {words}")
    assert words in fault.traceback


@pytest.mark.parametrize("returned", ["True", "False", "'too old'", "3"])
def test_a_probe_that_returns_something_else_is_a_reason_too(world, returned):
    probed(world, f"return {returned}", {"priority": 9})
    world.plugin("q")
    decision = world.dispatcher().decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    assert [rejection.code for rejection in decision.candidate("p.add").rejections] == [ReasonCode.PROBE_FAILED]


def test_a_probe_that_cannot_be_imported_is_a_reason(world):
    world.plugin("p", {"priority": 9}, ready="fake_p.nowhere:ready")
    world.plugin("q")
    decision = world.dispatcher().decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    ((code, text),) = told(decision, "p.add")
    assert code == "probe_failed"
    assert "No module named 'fake_p.nowhere'" in text


def test_nothing_is_probed_nor_imported_for_a_device_that_is_not_here_and_that_is_said(world):
    probed(world, "return None", requires={"modules": {"fake_absent": ">=2", "yaml": ""}})
    decision = world.dispatcher().decide(world.request())
    assert decision.chosen.name == "p.add"
    assert decision.candidate("p.add").assumed == (
        "fake_absent >=2 is installed",
        "yaml is installed",
        "the device passes the plugin's readiness probe",
    )
    assert "fake_p" not in sys.modules


def test_a_rejected_kernel_is_not_probed(world):
    probed(world, "return None", {"targets": {"acme": "acme2"}}, name="arch")
    probed(world, "return None", {"disabled": "slow"}, name="off")
    probed(world, "return None", name="missing", requires={"modules": {"fake_absent": ">=1"}})
    world.plugin("q")
    assert world.dispatcher().decide(world.request(present=True)).chosen.name == "q.add"
    assert not {"fake_arch", "fake_off", "fake_missing"} & sys.modules.keys()


def test_a_denied_kernel_is_not_probed(world):
    probed(world, "return None")
    world.plugin("q")
    assert world.dispatcher(DENY="p").decide(world.request(present=True)).chosen.name == "q.add"
    assert "fake_p" not in sys.modules


def test_what_is_not_installed_is_told_with_the_claims_it_fails(world):
    world.plugin("p", {"limits": {"M": {"max": 2}}}, requires={"modules": {"fake_absent": ">=1", "yaml": ">=1000"}})
    world.plugin("q")
    decision = world.dispatcher().decide(world.request(present=True, shapes={"x": (3,)}))
    (limit, missing, old) = told(decision, "p.add")
    assert limit == ("limit", "needs M <= 2; this is 3")
    assert missing == ("not_installed", "needs fake_absent >=1; it is not installed")
    assert old == ("not_installed", f"needs yaml >=1000; {installed_version('yaml')} is installed")


@pytest.mark.parametrize(
    ("module", "distribution"),
    [("torch", "torch"), ("yaml", "PyYAML"), ("pluggy", "pluggy"), ("portakernel", "portakernel")],
)
def test_a_modules_version_is_that_of_the_distribution_that_provides_it(module, distribution):
    assert installed_version(module) == version(distribution)


def test_a_module_without_a_distribution_is_installed_and_one_that_is_not_there_is_not(site):
    (site.folder / "fake_lonely.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    importlib.invalidate_caches()
    assert installed_version("fake_lonely") == "0"
    assert installed_version("fake_nowhere") is None
    assert "fake_lonely" not in sys.modules


def test_a_version_that_is_none_is_a_reason_and_not_an_error(world):
    (world.site.folder / "fake_odd.py").write_text("", encoding="utf-8")
    info = world.site.folder / "fake_odd-main.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake_odd\nVersion: main-branch\n", encoding="utf-8")
    importlib.invalidate_caches()
    world.plugin("p", {"priority": 9}, requires={"modules": {"fake_odd": ">=1"}})
    world.plugin("q")
    decision = world.dispatcher().decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    assert told(decision, "p.add") == [("not_installed", "needs fake_odd >=1; main-branch is installed")]


# --- the winner's import ---------------------------------------------------------------------------------------------


def test_a_winner_that_cannot_be_imported_loses_to_the_next(world):
    world.plugin("p", {"priority": 9, "entry": "fake_p.broken:run"})
    (world.packages[-1].folder / "broken.py").write_text("raise RuntimeError('no such symbol')\n", encoding="utf-8")
    importlib.invalidate_caches()
    world.plugin("q", {"priority": 8, "entry": "fake_q:missing"})
    world.plugin("r", {"priority": 7})
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(world.request(present=True))
    assert decision.chosen.name == "r.add"
    assert decision.why == "priority 7; the only one beside the reference"
    text = "importing fake_p.broken:run raised RuntimeError: no such symbol"
    assert told(decision, "p.add") == [("import_failed", f"{text}; see `portakernel doctor`")]
    ((code, why),) = told(decision, "q.add")
    assert code == "import_failed"
    assert "fake_q has no function 'missing'" in why
    assert decision.candidate("p.add").status == decision.candidate("q.add").status == "rejected"
    faults = [(fault.package.name, fault.stage) for fault in dispatcher.registry.manager.broken]
    assert faults == [("p", "import"), ("q", "import")]
    assert dispatcher.registry.manager.broken[0].reason == text


def test_an_import_that_exits_the_program_is_contained(world):
    world.plugin("p", {"priority": 9}, source="import sys\nsys.exit('wrong machine')")
    world.plugin("q")
    decision = world.dispatcher().decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    assert told(decision, "p.add")[0][0] == "import_failed"


def test_a_loser_is_not_imported(world):
    world.plugin("p", {"priority": 9})
    world.plugin("q")
    world.dispatcher().decide(world.request(present=True))
    assert "fake_p" in sys.modules
    assert "fake_q" not in sys.modules


# --- check -----------------------------------------------------------------------------------------------------------

CHECK = """\
from portakernel.claims.capability import ReasonCode, Rejection
seen = []
def check(**values):
    seen.append(values)
    if values["N"] % 8:
        return Rejection(ReasonCode.LIMIT, f"needs N of whole octets; this is {values['N']}", "N")
"""


def checked(world, source: str = CHECK):
    entry = {"entry": "fake_p:check", "reads": ["N", "x.alignment"]}
    world.plugin("p", {"op": "rms_norm", "priority": 9, "check": entry}, source=source)
    world.plugin("q", {"op": "rms_norm"})
    return world.dispatcher()


def test_a_check_sees_what_it_declares_and_its_rejection_is_the_reason(world):
    dispatcher = checked(world)
    request = world.request("rms_norm", present=True, shapes={"x": (3, 16)})
    assert dispatcher.decide(request).chosen.name == "p.rms_norm"
    request = world.request("rms_norm", present=True, shapes={"x": (3, 17)})
    decision = dispatcher.decide(request)
    assert decision.chosen.name == "q.rms_norm"
    assert told(decision, "p.rms_norm") == [("limit", "needs N of whole octets; this is 17")]
    values = [{"N": 16, "x_alignment": 16}, {"N": 17, "x_alignment": 16}]
    assert importlib.import_module("fake_p").seen == values


def test_a_check_is_not_run_on_values_that_a_question_leaves_open(world):
    decision = checked(world).decide(world.request("rms_norm", present=True))
    assert decision.chosen.name == "p.rms_norm"
    assert any("check" in text for text in decision.candidate("p.rms_norm").assumed)


def test_a_check_that_is_not_run_for_a_device_that_is_not_here_is_assumed(world):
    decision = checked(world).decide(world.request("rms_norm", shapes={"x": (3, 17)}))
    assert decision.chosen.name == "p.rms_norm"
    assert any("check" in text for text in decision.candidate("p.rms_norm").assumed)
    assert "fake_p" not in sys.modules


def test_a_check_is_not_run_for_a_kernel_that_is_rejected_already(world):
    entry = {"entry": "fake_p:check", "reads": ["N"]}
    rejected = {"op": "rms_norm", "check": entry, "targets": {"acme": "acme2"}}
    world.plugin("p", rejected, source="raise SystemExit('imported')", requires={"modules": {"fake_absent": ""}})
    world.plugin("q", {"op": "rms_norm"})
    decision = world.dispatcher().decide(world.request("rms_norm", present=True, shapes={"x": (3, 16)}))
    assert [code for code, _ in told(decision, "p.rms_norm")] == ["arch", "not_installed"]
    assert "fake_p" not in sys.modules


def test_nothing_is_assumed_of_a_kernel_that_is_rejected(world):
    world.plugin("p", {"targets": {"acme": "acme2"}}, requires={"modules": {"fake_absent": ">=1"}})
    decision = world.dispatcher().decide(world.request())
    assert decision.candidate("p.add").assumed == ()


def test_a_check_that_cannot_be_imported_is_a_reason(world):
    decision = checked(world, source="raise RuntimeError('no')").decide(
        world.request("rms_norm", present=True, shapes={"x": (3, 16)})
    )
    assert decision.chosen.name == "q.rms_norm"
    assert told(decision, "p.rms_norm")[0][0] == "import_failed"


@pytest.mark.parametrize("returned", ["True", "False", "'too small'"])
def test_a_check_that_returns_no_rejection_does_not_break_the_decision(world, returned):
    dispatcher = checked(world, source=f"def check(**values):\n    return {returned}\n")
    decision = dispatcher.decide(world.request("rms_norm", present=True, shapes={"x": (3, 16)}))
    assert decision.chosen.name == "q.rms_norm"
    assert decision.to_json()["chosen"] == "q.rms_norm"
    assert "p" in dispatcher.registry.manager.broken_names()


def test_a_distribution_that_is_named_is_found_without_reading_all_that_is_installed(monkeypatch):
    monkeypatch.setattr("portakernel.host.distributions.providers", lambda: pytest.fail("reads all that is installed"))
    installed_version.cache_clear()
    assert installed_version("yaml", "PyYAML") == version("PyYAML")
    assert installed_version("packaging", "no-such-distribution") == version("packaging")
    installed_version.cache_clear()


# --- what was built, by whichever process --------------------------------------------------------------------------

LINEAR_ACT = {"x": ["float16"], "weight": ["x"], "bias": ["x"]}
BUILT = """\
from portakernel.claims.capability import ReasonCode, Rejection
asked, kept = [], set()
def built(request):
    asked.append(request)
    if request.dtypes['x'] not in kept:
        return Rejection(ReasonCode.NEEDS_BUILD, f'is not built; `portakernel build p --target {request.target}`')
def build(request, tensors, values):
    kept.add(request.dtypes['x'])
"""


def kept_on_disk(world, source: str = BUILT):
    entries = {"build": "fake_p:build", "built": "fake_p:built"}
    world.plugin("p", {**entries, "priority": 9, "targets": {"acme": "acme1"}}, source=source)
    world.plugin("q")


def test_a_kernel_says_for_itself_whether_an_earlier_process_built_it(world):
    kept_on_disk(world)
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    assert told(decision, "p.add") == [("needs_build", "is not built; `portakernel build p --target acme:acme1`")]
    importlib.import_module("fake_p").kept.add("float32")
    assert dispatcher.decide(world.request(present=True)).chosen.name == "p.add"
    assert dispatcher.decide(world.request(present=True, dtypes="float16")).chosen.name == "q.add"


def test_it_is_asked_of_no_request_that_it_does_not_claim_and_of_no_device_that_is_not_here(world):
    kept_on_disk(world)
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(world.request())
    assert decision.chosen.name == "p.add"
    assert decision.candidate("p.add").assumed == ('it is built: portakernel.warmup("add", x, y)',)
    assert "fake_p" not in sys.modules
    dispatcher.decide(world.request(present=True, target="acme:acme2"))
    assert "fake_p" not in sys.modules


def test_what_raises_when_asked_is_broken_and_the_next_kernel_serves(world):
    kept_on_disk(world, "def build(*a): ...\ndef built(request): raise OSError('no disk')\n")
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    assert told(decision, "p.add") == [("probe_failed", "its built raised OSError: no disk; see `portakernel doctor`")]
    assert [(broken.stage, broken.package.name) for broken in dispatcher.registry.manager.broken] == [("built", "p")]


def test_why_its_build_failed_is_told_in_the_place_of_the_command(world):
    from portakernel.claims.capability import Rejection
    from portakernel.contracts import contract

    kept_on_disk(world)
    dispatcher, request = world.dispatcher(), world.request(present=True)
    kernel = dispatcher.registry.kernels["p.add"]
    dispatcher.builds.remember_failure(contract("add"), kernel, request, Rejection(ReasonCode.CANNOT_RUN, "no nvcc"))
    assert told(dispatcher.decide(request), "p.add") == [("cannot_run", "no nvcc")]


def test_what_is_built_for_dtypes_formats_and_values_has_them_in_the_key(world):
    from portakernel.calling.fast.claim_reads import reads_of
    from portakernel.contracts import contract

    kernel = {"op": "linear_act", "build": "fake_r:build", "built": "fake_r:built", "dtypes": LINEAR_ACT}
    world.plugin("r", kernel, source="def build(*a): ...\ndef built(request): ...\n")
    dispatcher = world.dispatcher()
    described = contract("linear_act")
    few = {p.name for p in described.parameters if p.kind in ("bool", "text", "dtype", "format")}
    assert few
    kernel = dispatcher.registry.kernels["r.linear_act"]
    assert set(reads_of(described, [kernel], dispatcher.readiness).values) == few
