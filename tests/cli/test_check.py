"""``portakernel check``: around the conformance kit, which has tests of its own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from portakernel import runtime
from portakernel_kit import conformance
from portakernel_kit.cli.check import command
from portakernel_kit.conformance.drawn.processes import DEFAULT_BUDGET, Budget
from portakernel_kit.conformance.result import Result

PASSED = Result("acme.add", "add", "add[odd, x=float32]", "forward", "passed", device="cpu:x86_64 (cpu)")
FAILED = Result(
    "acme.add", "add", "add[scalar, x=float32]", "forward", "failed", "2 ulp off", "cpu:x86_64 (cpu)", traceback="Trace"
)
SKIPPED = Result("acme.norm", "rms_norm", "rms_norm[*]", "claim", "skipped", "serves amd any; here: cpu:x86_64")


DRAWN = Result("acme.add", "add", "add[drawn 0]", "forward", "failed", "5 ulp off\nagain: portakernel check --one '{}'")
replace_result = replace


class Twice(BaseException):
    """Two signals, as a process gets them that is signalled alone and with its group."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


class FakeDrawing:
    """One request that fails, where there is time for it."""

    pairs: ClassVar[dict[str, tuple[int, int]]] = {}

    def __init__(self, budget: Budget, first: int) -> None:
        self.budget, self.first, self.kernels = budget, first, ["acme.add"]

    def results(self) -> Iterator[Result]:
        yield from [DRAWN] if self.budget.seconds > DEFAULT_BUDGET.seconds else []

    def to_json(self) -> dict[str, Any]:
        requests = int(self.budget.seconds > DEFAULT_BUDGET.seconds)
        pairs = {"pairs_asked": 3, "pairs_possible": 4}
        return {"requests": requests, "first": 1, **pairs, "by_kernel": {"acme.add": requests}}


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Puts a kit with these results in place of the real one; an exception among them is raised. Returns the calls."""

    def replace(results: Sequence[Result | BaseException]) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def check(_: object, **asked: Any) -> Iterator[Result]:
            calls.append(asked)
            for result in results:
                if isinstance(result, Twice):
                    try:
                        signal.raise_signal(result.number)
                    finally:
                        signal.raise_signal(result.number)
                if isinstance(result, BaseException):
                    raise result
                yield result

        fake = SimpleNamespace(
            check=check,
            plan=lambda _, **__: len(results),
            fresh_seed=lambda: 7,
            drawing=lambda *_, budget, workers, first, **__: (
                calls.append({"workers": workers}) or FakeDrawing(budget, first)
            ),
            again=lambda _, text, __: iter([replace_result(results[0], case=f"add[{text}]")]),
        )
        monkeypatch.setattr(conformance, "runner", fake, raising=False)
        return calls

    return replace


def test_json_form_key_by_key(run: Callable, kit: Callable) -> None:
    kit([PASSED, FAILED, SKIPPED])
    ran = run("check --json")
    assert ran.status == 1
    assert list(ran.json) == ["circumstances", "seed", "interrupted", "drawn", "summary", "results"]
    assert (ran.json["seed"], ran.json["interrupted"]) == (7, False)
    assert ran.json["summary"] == [
        {
            "kernel": "acme.add",
            "op": "add",
            "passed": 1,
            "failed": 1,
            "skipped": 0,
            "reason": "add[scalar, x=float32] forward: 2 ulp off",
        },
        {"kernel": "acme.norm", "op": "rms_norm", "passed": 0, "failed": 0, "skipped": 1, "reason": SKIPPED.detail},
    ]
    assert ran.json["results"] == [result.to_json() for result in (PASSED, FAILED, SKIPPED)]


@pytest.mark.parametrize(("places", "named"), [((0, 0), True), ((0, None), False), ((), False)])
def test_json_names_the_device_of_all_results(
    places: tuple[int | None, ...], named: bool, run: Callable, kit: Callable
) -> None:
    here = [device for device in runtime.dispatcher().registry.devices if device.torch_device == "cpu"]
    texts = ["acme:first (acme:0)" if place is None else f"{here[place].target} (cpu)" for place in places]
    kit([replace(PASSED, device=text) for text in texts] or [SKIPPED])
    assert run("check --json").json["circumstances"]["device"] == (here[0].name if named else None)


def test_claims_that_pass_alone_are_no_run(run: Callable, kit: Callable) -> None:
    kit([replace(PASSED, aspect="boundary"), SKIPPED])
    ran = run("check --seed 5")
    assert ran.status == 1
    assert "nothing ran: no case was put to a kernel" in ran.out


def test_the_summary_names_the_mode_of_what_ran_without_a_device_of_its_own(run: Callable, kit: Callable) -> None:
    skipped = Result("acme.norm", "rms_norm", "rms_norm[*]", "claim", "skipped", "no such mode", mode="emulator")
    kit([PASSED, replace(PASSED, kernel="acme.mul", mode="emulator"), skipped])
    assert run("check --seed 5").out.splitlines() == [
        "",
        "Conformance, seed 5",
        "  kernel               passed  failed  skipped  reason",
        "  acme.add                  1       0        0",
        "  acme.mul (emulator)       1       0        0",
        "  acme.norm                 0       0        1  no such mode",
    ]


def test_failures_are_printed_whole_and_the_summary_follows(run: Callable, kit: Callable) -> None:
    kit([PASSED, FAILED, SKIPPED])
    ran = run("check --seed 5")
    assert ran.status == 1
    assert ran.out.splitlines() == [
        "failed acme.add add[scalar, x=float32] forward on cpu:x86_64 (cpu)",
        "    2 ulp off",
        "",
        "Conformance, seed 5",
        "  kernel     passed  failed  skipped  reason",
        "  acme.add        1       1        0  add[scalar, x=float32] forward: 2 ulp off",
        "  acme.norm       0       0        1  serves amd any; here: cpu:x86_64",
    ]
    assert "Trace" in run("check --verbose").out


def test_all_passed_is_success_and_skips_do_not_count(run: Callable, kit: Callable) -> None:
    kit([PASSED, SKIPPED])
    assert run("check").status == 0


@pytest.mark.parametrize("results", [[], [SKIPPED]])
def test_nothing_ran_is_a_failure_and_says_so(run: Callable, kit: Callable, results: list[Result]) -> None:
    kit(results)
    ran = run("check")
    assert ran.status == 1
    assert ran.out.endswith("  nothing ran: `portakernel doctor` says which kernels are ready here\n")


def test_an_interrupt_prints_what_was_found_so_far(run: Callable, kit: Callable) -> None:
    kit([PASSED, KeyboardInterrupt(), FAILED])
    ran = run("check")
    assert ran.status == 130
    assert ran.out.splitlines() == [
        "",
        "Interrupted; until then:",
        "  kernel    passed  failed  skipped  reason",
        "  acme.add       1       0        0",
    ]
    ran = run("check --json")
    assert (ran.status, ran.json["interrupted"], len(ran.json["results"])) == (130, True, 1)


# schedulers and `timeout` send the second
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_results_are_printed_loses_none(
    run: Callable, kit: Callable, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    summarise = command.summarise
    monkeypatch.setattr(command, "summarise", lambda found: signal.raise_signal(number) or summarise(found))
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    kit([PASSED])
    ran = run("check --json")
    assert (ran.status, ran.json["interrupted"], len(ran.json["results"])) == (0, False, 1)
    kit([PASSED, Twice(number)])
    ran = run("check --json")
    assert (ran.status, ran.json["interrupted"], len(ran.json["results"])) == (130, True, 1)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_the_question_reaches_the_kit(run: Callable, kit: Callable) -> None:
    calls = kit([PASSED])
    run("check --plugin torch --op add --kernel torch.add --device cpu --seed 3")
    drawing, asked = calls
    assert drawing == {"workers": None}
    assert asked["workers"] is None
    assert (asked["plugin"], asked["op"], asked["names"], asked["seed"]) == ("torch", "add", ["torch.add"], 3)
    assert asked["device"].torch_device == "cpu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--op ad", "unknown op 'ad'; did you mean 'add'?"),
        ("--plugin tritn", "unknown plugin 'tritn'; did you mean 'triton'?"),
        ("--op add --kernel torch.ad", "unknown kernel 'torch.ad'; did you mean 'torch.add' or "),
        ("--plugin torch --kernel triton.add", "triton.add is a kernel of add, of plugin triton; asked for"),
        ("--device npu:9", "unknown device 'npu:9'; "),
    ],
)
def test_names_that_nothing_has_are_bad_input(run: Callable, arguments: str, message: str) -> None:
    ran = run(f"check {arguments}")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"portakernel: {message}")


@pytest.mark.usefixtures("forked_observers")
def test_the_real_kit_passes_torchs_add(run: Callable) -> None:
    ran = run("check --plugin torch --op add --device cpu --json")
    assert ran.status == 0, ran.json["summary"]
    assert ran.json["drawn"]["pairs_asked"] == ran.json["drawn"]["pairs_possible"] > 100
    assert ran.json["summary"][0]["kernel"] == "torch.add"


def test_workers_are_of_cases_and_of_drawn_requests(run: Callable, kit: Callable) -> None:
    calls = kit([PASSED])
    run("check --workers 3")
    assert [asked["workers"] for asked in calls] == [3, 3]


def test_an_interrupt_ends_the_processes_that_run_cases(
    run: Callable, forked_observers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def interrupted(out: Any, result: Result, **_: Any) -> None:
        started.extend(multiprocessing.active_children())
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command, "print_result", interrupted)
    ran = run("check --kernel reference.add --device cpu --workers 2 --verbose")
    assert ran.status == 130
    assert ran.out.startswith("\nInterrupted; until then:\n")
    assert len(started) == 2
    assert not any(process.is_alive() for process in started)


def test_kernels_that_are_named_are_the_only_ones(run: Callable) -> None:
    ran = run("check --op add --kernel torch.add --kernel reference.add --device cpu --budget 0 --json")
    assert ran.status == 0
    assert {row["kernel"] for row in ran.json["results"]} == {"torch.add", "reference.add"}


def test_drawn_requests_follow_the_cases_for_as_long_as_is_asked(run: Callable, kit: Callable) -> None:
    kit([PASSED])
    ran = run("check --budget 3m --seed 5")
    assert ran.status == 1
    assert ran.out.splitlines() == [
        "failed acme.add add[drawn 0] forward",
        "    5 ulp off",
        "    again: portakernel check --one '{}'",
        "",
        "Conformance, seed 5",
        "  kernel    passed  failed  skipped  reason",
        "  acme.add       1       1        0  add[drawn 0] forward: 5 ulp off",
        "  1 drawn requests; 3 of 4 pairs of what may differ were asked for",
    ]
    assert run("check").status == 0


def test_drawn_requests_run_alone_where_that_is_asked(run: Callable, kit: Callable) -> None:
    calls = kit([PASSED])
    ran = run("check --drawn --budget 3m --workers 3 --json")
    assert [result["case"] for result in ran.json["results"]] == ["add[drawn 0]"]
    assert calls == [{"workers": 3}]
    ran = run("check --drawn --huge")
    assert ran.status == 2
    assert "--huge draws no requests, and --drawn runs nothing else" in ran.err


@pytest.mark.usefixtures("forked_observers")
def test_what_is_drawn_alone_names_its_dtypes_and_says_how_many_there_were(run: Callable) -> None:
    ran = run("check --plugin reference --op quantize_fp8 --device cpu --drawn --workers 1 --seed 3 --budget 2s --json")
    passed = [r["case"] for r in ran.json["results"] if (r["aspect"], r["status"]) == ("forward", "passed")]
    assert passed[0] == "quantize_fp8[drawn 0, granularity=block_1x128, x=float32, dtype=float8_e5m2fnuz]"
    assert all("[drawn " in result["case"] for result in ran.json["results"])
    assert ran.json["drawn"]["by_kernel"] == {"reference.quantize_fp8": ran.json["drawn"]["requests"]}


def test_one_request_is_asked_again_alone(run: Callable, kit: Callable) -> None:
    kit([PASSED])
    ran = run("check", "--one", "{}", "--json")
    assert (ran.status, [result["case"] for result in ran.json["results"]]) == (0, ["add[{}]"])


def test_a_request_alone_that_is_refused_says_why_and_one_that_has_no_place_to_run_where_to_look(
    run: Callable, kit: Callable
) -> None:
    reason = "refused (x): dtype: x needs float32; " + "this is a long reason; " * 9
    kit([replace(PASSED, aspect="claim", status="skipped", detail=reason)])
    ran = run("check", "--one", "{}")
    assert ran.status == 1
    assert ran.out.splitlines()[:2] == ["skipped acme.add add[{}] claim on cpu:x86_64 (cpu)", f"    {reason.strip()}"]
    assert ran.out.endswith("  nothing ran: the request was not put to the kernel, for the reason above\n")
    kit([SKIPPED])
    ran = run("check", "--one", "{}")
    assert ran.out.endswith("  nothing ran: `portakernel doctor` says which kernels are ready here\n")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--budget 0", "a larger --budget, such as 5m, draws some"),
        ("--budget 0.1s", "a larger --budget, such as 5m, draws some"),
        ("--budget 1s --first 9", "a larger --budget, such as 5m, draws some; so does a smaller --first than 9"),
    ],
)
def test_a_budget_in_which_nothing_was_drawn_is_told(run: Callable, kit: Callable, asked: str, said: str) -> None:
    kit([PASSED])
    ran = run(f"check --drawn {asked}")
    assert ran.status == 1
    assert ran.out.endswith(f"  nothing ran: no request was drawn; {said}\n")


def test_kernels_of_which_nothing_can_be_drawn_get_no_larger_budget(
    run: Callable, kit: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit([PASSED])
    monkeypatch.setattr(FakeDrawing, "pairs", {"triton.add": (0, 0)})
    ran = run("check --drawn --budget 9s")
    assert ran.status == 1
    assert "nothing ran: of all that could be drawn these kernels serve nothing here; --coverage says why" in ran.out


def test_an_interrupt_before_anything_ran_gives_no_advice(run: Callable, kit: Callable) -> None:
    kit([KeyboardInterrupt()])
    ran = run("check")
    assert (ran.status, ran.out) == (130, "\nInterrupted; until then:\n  nothing ran\n")


def test_a_line_that_is_no_request_is_bad_input(run: Callable) -> None:
    line = '{"kernel":"torch.softmax_cpu","dtypes":{"x":"float32"},"leading":3,"dims":{"N":8},"seed":1}'
    said = '--one: "leading" takes a list of whole numbers, such as [2, 3]; this is 3'
    ran = run("check", "--one", line)
    assert (ran.status, ran.out, ran.err) == (2, "", f"portakernel: {said}\n")
    ran = run("check", "--one", line, "--json")
    assert (ran.status, ran.json["error"]["message"]) == (2, said)


@pytest.mark.parametrize("budget", ["soon", "-1s", "10x"])
def test_a_budget_is_a_time(run: Callable, budget: str) -> None:
    ran = run("check", f"--budget={budget}")
    assert ran.status == 2
    assert f"a budget is a time, such as 60s or 10m, 0, or all; this is {budget!r}" in ran.err


def test_coverage_says_which_pairs_are_asked_for_and_runs_nothing(run: Callable) -> None:
    ran = run("check --coverage --kernel torch.softmax_cpu --device cpu --json")
    (kernel,) = ran.json["kernels"]
    assert kernel["kernel"] == "torch.softmax_cpu"
    assert kernel["asked"] + kernel["refused"] == kernel["pairs"]
    assert kernel["left"] == 0
    shown = run("check --coverage --kernel torch.softmax_cpu --device cpu --seed 4").out
    assert "100.0%" in shown
    assert "softmax has no such call" in " ".join(shown.split())


@pytest.mark.usefixtures("forked_observers")
def test_a_failing_kernel_is_found_by_what_is_drawn_and_by_the_line_that_is_printed(
    run: Callable, install: Callable
) -> None:
    manifest = """\
schema_version: 1
plugin: acme
kernels:
  - op: softmax
    entry: acme_for_cli_tests:softmax
    targets: {cpu: any}
    dtypes: {x: [float32]}
"""
    source = """\
import torch

def softmax(x, *, out=None):
    y = torch.softmax(x.float(), -1).to(x.dtype).contiguous()
    if x.dim() > 4:
        y[..., -1] = 2
    return y if out is None else out.copy_(y)
"""
    install("acme", manifest=manifest, source=source)
    ran = run("check --plugin acme --budget 4s --seed 3 --device cpu --json")
    failed = [r for r in ran.json["results"] if r["status"] == "failed" and "[drawn" in r["case"]]
    line = failed[0]["detail"].partition("portakernel check --one '")[2].rstrip("'")
    again = run("check", "--one", line, "--json")
    assert again.status == 1
    assert '"N":1}' in line
