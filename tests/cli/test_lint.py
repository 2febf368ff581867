"""``portakernel lint``: around what is observed, which has tests of its own (tests/conformance)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from portakernel_kit.conformance.observing import lint as linting
from portakernel_kit.conformance.observing.observation import Begun, Findings, Finished, Observation, Planned, Refusal
from portakernel_kit.conformance.result import Result

PLACE = "cpu:x86_64 (cpu)"
HOLDS = Result("acme.add", "add", "add[odd, x=float32]", "forward", "passed", device=PLACE)
FAILS = Result("acme.add", "add", "add[scalar, x=float32]", "forward", "failed", "2 ulp off", PLACE, traceback="Trace")
DECLINED = Result(
    "acme.add", "add", "add[x, x=float32]", "forward", "skipped", "the kernel declared that it cannot run: limit: odd"
)
REFUSALS = (
    Refusal("x not float16", "dtype", "x", 3),
    Refusal("N <= 8192", "limit", "N", 1),
    Refusal("x.contiguous = true", "layout", "x.contiguous", 9),
    Refusal("T >= 1", "limit", "T", 4),
    Refusal("N <= 1073741824", "limit", "N", 0),
    Refusal("without feature bias", "feature", "bias", 2),
    Refusal("without property deterministic", "not_deterministic", "deterministic", 1),
    Refusal("mode not 'sum'", "feature", "mode", 5),
)
WORKS = [Observation("x not float16", f"add[{name}, x=float16]", "correct") for name in ("odd", "even")]
DEATH = Observation("T >= 1", "add[T = 0, x=float32]", "ended", "it ended its process: signal 8 (SIGFPE)", "Fatal")
VAGUE = Observation("mode not 'sum'", "add[mean, x=float32]", "unjudged", "ZeroDivisionError: division by zero")
OBSERVATIONS = [
    *WORKS,
    Observation("N <= 8192", "add[N = 8193, x=float32]", "correct"),
    Observation("x.contiguous = true", "add[sliced, x=float32]", "correct"),
    Observation("x.contiguous = true", "add[stepped, x=float32]", "wrong", "forward: y: 3 of 9 elements differ"),
    Observation("x.contiguous = true", "add[split, x=float32]", "raised", "forward: RuntimeError: no", "Trace"),
    DEATH,
    VAGUE,
]
PLANNED = Planned(3, REFUSALS, 12)
ASKED = [Begun(observation.claim, observation.case) for observation in OBSERVATIONS]
ASKED.append(Begun("without property deterministic", "add[odd, x=float32]"))
RIGHT = Planned(1, (Refusal("T >= 1", "limit", "T", 4),), 0)


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Puts kernels with these events in place of the real ones; an exception among them is raised. Returns the calls.

    A kernel that is a text cannot run here, for that reason.
    """

    def replace(**kernels: Sequence[Any] | str) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def lint(_: object, asked: Sequence[Any], **how: Any) -> Iterator[tuple[Findings, Any]]:
            calls.append({"kernels": [kernel.name for kernel in asked], **how})
            for name, events in kernels.items():
                reason = events if isinstance(events, str) else ""
                findings = Findings(f"acme.{name}", name, "" if reason else PLACE, reason=reason)
                for event in [Finished()] if isinstance(events, str) else events:
                    if isinstance(event, BaseException):
                        raise event
                    findings.take(event)
                    yield findings, event

        monkeypatch.setattr(linting, "lint", lint)
        return calls

    return replace


def shown(observation: Observation) -> str:
    return f"{observation.case} {observation.detail}"


def test_refusals_are_told_with_what_came_of_them(run: Callable, observed: Callable) -> None:
    observed(add=[PLANNED, HOLDS, DECLINED, *ASKED, *OBSERVATIONS, Finished()], norm="serves amd any; here: cpu:x86_64")
    ran = run("lint --seed 7")
    assert ran.status == 0
    assert ran.out.splitlines() == [
        "",
        "acme.add on cpu:x86_64 (cpu)",
        "  every claim holds: 1 passed, 1 skipped, 1 of them by the kernel itself",
        "  refusal            for                             observed",
        "  would have worked  x not float16                   correct in 2, 1 left untried: add[odd, x=float16]",
        "  would have worked  N <= 8192                       correct in 1: add[N = 8193, x=float32]",
        f"  right              x.contiguous = true             wrong in 1, raised in 1 of 3: {shown(OBSERVATIONS[4])}",
        f"  right              T >= 1                          ended its process in 1 of 1: {shown(DEATH)}",
        "  not tried          N <= 1073741824                 no case is refused for it alone",
        "  not tried          without feature bias            2 left untried",
        "  not tried          without property deterministic  no case shows it",
        f"  not tried          mode not 'sum'                  1 could not be judged, 4 left untried: {shown(VAGUE)}",
        "  12 more cases are refused for several reasons, which says nothing of any one",
        "acme.norm cannot run here: serves amd any; here: cpu:x86_64",
        "",
        "Declared and observed, seed 7",
        "  1 of 2 kernels ran; of 8 refusals 2 would have worked, 2 right, 4 not tried",
        "    acme.add: x not float16, 1 left untried",
        "    acme.add: N <= 8192",
    ]


def test_json_form_key_by_key(run: Callable, observed: Callable) -> None:
    observed(add=[PLANNED, HOLDS, FAILS, *ASKED, *OBSERVATIONS, Finished()])
    ran = run("lint --json --seed 7")
    assert ran.status == 1
    assert list(ran.json) == ["circumstances", "seed", "interrupted", "kernels", "file"]
    assert (ran.json["seed"], ran.json["interrupted"], ran.json["file"]) == (7, False, None)
    assert ran.json["circumstances"]["torch_device"]
    (kernel,) = ran.json["kernels"]
    refusals = kernel.pop("refusals")
    assert kernel == {
        "kernel": "acme.add",
        "op": "add",
        "device": PLACE,
        "mode": None,
        "reason": "",
        "done": True,
        "claims": {"passed": 1, "failed": 1, "skipped": 0, "declined": 0},
        "failures": [FAILS.to_json()],
        "several": 12,
    }
    assert refusals[0] == {
        "claim": "x not float16",
        "code": "dtype",
        "parameter": "x",
        "cases": 3,
        "verdict": "would_have_worked",
        "left": 1,
        "tried": [{"case": o.case, "outcome": "correct", "detail": "", "traceback": ""} for o in WORKS],
    }
    assert [refusal["verdict"] for refusal in refusals] == [
        "would_have_worked", "would_have_worked", "right", "right", *["not_tried"] * 4,
    ]  # fmt: skip
    assert refusals[2]["left"] == 0  # once it is right, nothing is left to show
    assert refusals[3]["tried"][0]["traceback"] == "Fatal"


def test_claim_that_fails_is_told_whole_when_it_comes(run: Callable, observed: Callable) -> None:
    observed(add=[Planned(2, (), 0), HOLDS, FAILS, Finished()])
    ran = run("lint --seed 7")
    assert ran.status == 1
    assert ran.out.splitlines() == [
        "failed acme.add add[scalar, x=float32] forward on cpu:x86_64 (cpu)",
        "    2 ulp off",
        "",
        "acme.add on cpu:x86_64 (cpu)",
        "  1 results fail: 1 passed, 0 skipped",
        "",
        "Declared and observed, seed 7",
        "  claims fail: acme.add",
        "  1 of 1 kernels ran; of 0 refusals 0 would have worked, 0 right, 0 not tried",
    ]


def test_refusals_that_would_have_worked_fail_a_strict_run_alone(run: Callable, observed: Callable) -> None:
    observed(add=[PLANNED, HOLDS, *ASKED, *OBSERVATIONS, Finished()])
    assert run("lint").status == 0
    assert run("lint --strict").status == 1
    observed(add=[RIGHT, HOLDS, DEATH, Finished()])
    assert run("lint --strict").status == 0


def test_nothing_ran_is_a_failure_and_says_so(run: Callable, observed: Callable) -> None:
    observed(add="serves amd any; here: cpu:x86_64")
    ran = run("lint")
    assert ran.status == 1
    assert ran.out.endswith("  nothing ran: `portakernel doctor` says which kernels are ready here\n")
    observed(add=[Planned(3, (), 0, "not_installed: needs acme; it is not installed"), Finished()])
    ran = run("lint")
    assert ran.status == 1
    assert ran.out.startswith("acme.add cannot run here: not_installed: needs acme; it is not installed\n")


def test_an_interrupt_prints_what_was_found_so_far(run: Callable, observed: Callable) -> None:
    observed(add=[RIGHT, HOLDS, Finished()], norm=[RIGHT, DEATH, KeyboardInterrupt()])
    ran = run("lint --seed 7")
    assert ran.status == 130
    assert ran.out.splitlines()[5:] == [
        "",
        "acme.norm on cpu:x86_64 (cpu)",
        "  refusal  for     observed",
        f"  right    T >= 1  ended its process in 1 of 1: {shown(DEATH)}",
        "",
        "Interrupted, seed 7",
        "  2 of 2 kernels ran; of 2 refusals 0 would have worked, 1 right, 1 not tried",
    ]
    ran = run("lint --json")
    assert (ran.status, ran.json["interrupted"]) == (130, True)
    assert [kernel["done"] for kernel in ran.json["kernels"]] == [True, False]


def written(folder: Path) -> tuple[Path, Any]:
    (path,) = folder.iterdir()
    return path, json.loads(path.read_text(encoding="utf-8"))


def test_what_is_found_is_written_kernel_by_kernel(run: Callable, observed: Callable, tmp_path: Path) -> None:
    observed(add=[RIGHT, HOLDS, Finished()], norm=[RIGHT, DEATH, RuntimeError("a bug")])
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        run("lint", "--output", str(tmp_path / "results"))
    _, found = written(tmp_path / "results")
    assert [kernel["kernel"] for kernel in found["kernels"]] == ["acme.add"]


def test_the_file_is_what_json_prints(run: Callable, observed: Callable, tmp_path: Path) -> None:
    observed(add=[RIGHT, HOLDS, Finished()])
    ran = run("lint", "--output", str(tmp_path / "results"), "--json")
    path, found = written(tmp_path / "results")
    assert re.fullmatch(r"lint-[a-z0-9-]+\.json", path.name)
    assert ran.json == {**found, "file": str(path)}
    others = tmp_path / "others"
    assert run("lint", "--output", str(others)).out.endswith(f"\nwritten to {written(others)[0]}\n")


def test_the_question_reaches_the_kit(run: Callable, observed: Callable) -> None:
    calls = observed(add=[RIGHT, HOLDS, Finished()])
    run("lint --plugin torch --op rms_norm --kernel torch.rms_norm --device cpu --seed 3 --seconds 5 --patience 60")
    run("lint --op add --no-claims --targets")
    first, second = calls
    assert first.pop("device").torch_device == "cpu"
    assert first == {
        "kernels": ["torch.rms_norm"],
        "seed": 3,
        "seconds": 5.0,
        "patience_s": 60.0,
        "claims": True,
        "targets": False,
    }
    assert {"torch.add", "triton.add", "reference.add"} <= set(second["kernels"])
    assert (second["claims"], second["device"], second["seconds"], second["targets"]) == (False, None, 20.0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--op ad", "unknown op 'ad'; did you mean 'add'?"),
        ("--plugin tritn", "unknown plugin 'tritn'; did you mean 'triton'?"),
        ("--op add --kernel torch.ad", "unknown kernel 'torch.ad'; did you mean 'torch.add'"),
        ("--device npu:9", "unknown device 'npu:9'; "),
    ],
)
def test_names_that_nothing_has_are_bad_input(run: Callable, arguments: str, message: str) -> None:
    ran = run(f"lint {arguments}")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"portakernel: {message}")


MANIFEST = """\
schema_version: 1
plugin: acme
kernels:
  - op: add
    entry: acme_for_cli_tests:add
    targets: {cpu: any}
    dtypes: {x: [float32], y: [x]}
    properties: {deterministic: true, inplace: true, graph_capture: true}
"""
SOURCE = """\
import os

import torch


def add(x, y, *, out=None):
    if x.dtype is torch.bfloat16:
        os.abort()
    out = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    return torch.add(x, y, out=out)
"""


@pytest.mark.usefixtures("forked_observers")
def test_installed_plugin_is_observed_in_a_process_of_its_own(run: Callable, install: Callable) -> None:
    install("acme", manifest=MANIFEST, source=SOURCE)
    ran = run("lint --plugin acme --device cpu --seconds 600 --json")
    assert ran.status == 0, ran.json["kernels"][0]["failures"]
    (kernel,) = ran.json["kernels"]
    assert kernel["claims"]["passed"] > 50
    told = {refusal["claim"]: refusal for refusal in kernel["refusals"]}
    assert told["x not float16"]["verdict"] == "would_have_worked"
    assert told["x not bfloat16"]["verdict"] == "right"
    (tried,) = told["x not bfloat16"]["tried"]
    assert (tried["outcome"], tried["detail"]) == ("ended", "it ended its process: signal 6 (SIGABRT)")
