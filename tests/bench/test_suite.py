"""A run on this machine's CPU: what is timed, what is not and why, and that the numbers go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

import portakernel
from portakernel.calling.arguments import Arguments
from portakernel.cli.output import Page
from portakernel.contract import GridRow
from portakernel.contracts import own_contracts
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import make_layer
from portakernel.runtime import dispatcher
from portakernel.words.target import Target
from portakernel_kit.bench import measurement, steps
from portakernel_kit.bench.contenders import Filter, prepare_backward
from portakernel_kit.bench.launches import time_launches
from portakernel_kit.bench.operands import draw
from portakernel_kit.bench.question import launch_row, questions
from portakernel_kit.bench.results import Cell, Latency, LeftOut, routing
from portakernel_kit.bench.stopwatch import Clock, stopwatch
from portakernel_kit.bench.suite import Plan, Suite
from portakernel_kit.bench.verification import difference
from portakernel_kit.cli.bench.report import print_cell

HERE = Target("cpu", "x86_64")
CPU = torch.device("cpu")


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reference is too slow to be timed, however busy the machine is."""
    monkeypatch.setattr(measurement, "_NEVER_SLOW_US", float("inf"))


def measured(
    dispatcher: Dispatcher,
    op: str,
    *,
    rows: Sequence[GridRow] = (),
    dtypes: Sequence[str] = ("float32",),
    admitted: Filter | None = None,
    forward: bool = True,
    backward: bool = False,
    chosen_sizes: bool = True,
    seconds: float = 0.0,
    builds: bool = False,
) -> list[Cell | LeftOut]:
    plan = Plan(tuple(questions(op, rows or [launch_row(op)], dtypes, HERE)), forward, backward, chosen_sizes)
    return list(Suite(dispatcher, CPU, admitted or Filter(), seconds, builds=builds).run(plan))


def one(found: Sequence[Cell | LeftOut]) -> Cell:
    (cell,) = found
    assert isinstance(cell, Cell)
    return cell


def test_what_was_built_for_other_leading_sizes_is_built_for_these_too(acme) -> None:
    rows = [GridRow(f"{m} rows", {"x": (m, 64), "weight": (64,)}) for m in (4, 8)]
    admitted = Filter(("acme.for_rows",))
    for cell in measured(acme("for_rows"), "rms_norm", rows=rows, admitted=admitted, builds=True):
        assert [(kernel.kernel, kernel.status) for kernel in cell.kernels] == [("acme.for_rows", "timed")]


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("op", own_contracts())
def test_every_kernel_that_serves_here_is_timed_forward_and_backward(op: str) -> None:
    found = measured(Dispatcher(), op, dtypes=["float32", "bfloat16"], backward=True)
    cells = [cell for cell in found if isinstance(cell, Cell)]
    has_backward = own_contracts()[op].gradient == "kernel"
    assert [cell.phase for cell in cells] == (["forward", "backward"] if has_backward else ["forward"]) * 2
    assert len(found) == 4
    for cell in cells:
        assert cell.chosen in [m.kernel for m in cell.kernels]
        assert {(m.kernel, m.status, m.reason) for m in cell.kernels} == {(m.kernel, "timed", "") for m in cell.kernels}
        assert cell.checked_against == f"reference.{op}"


def test_the_numbers_of_a_cell_go_together() -> None:
    cell = one(measured(Dispatcher(), "rms_norm", rows=[GridRow("small", {"x": (64, 256)})], seconds=0.02))
    found = cell.to_json()
    assert (found["case"], found["bytes"], found["bound"]) == ("small", 2 * 64 * 256 * 4 + 1024, "memory")
    times = [row["latency_us"] for row in found["kernels"]]
    assert times == sorted(times)
    assert found["best_us"] == times[0]
    for row in found["kernels"]:
        assert row["p20_us"] <= row["latency_us"] <= row["p80_us"]
        assert row["rounds"] >= 3
        assert row["launches"] >= row["rounds"]
        assert row["tb_per_s"] == pytest.approx(found["bytes"] / row["latency_us"] / 1e6)
        assert row["tflop_per_s"] == pytest.approx(found["flops"] / row["latency_us"] / 1e6)
        assert row["copy_percent"] == pytest.approx(100 * found["copy_us"] / row["latency_us"])
        assert row["ratio_to_best"] == pytest.approx(row["latency_us"] / found["best_us"])
        assert row["chosen"] is (row["kernel"] == found["chosen"])
    (picked,) = (row for row in found["kernels"] if row["chosen"])
    assert found["chosen_ratio"] == picked["ratio_to_best"]


def test_a_cell_says_how_far_the_best_of_other_plugins_is_behind(
    acme: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = one(measured(acme("right", "wrong"), "rms_norm"))
    times = {m.kernel: m.latency.median_us for m in cell.kernels if m.latency is not None}
    ratio = times["acme.right"] / times["torch.rms_norm_cpu"]
    assert cell.rival == ("acme.right", ratio)
    assert (cell.to_json()["rival"], cell.to_json()["rival_ratio"]) == cell.rival
    print_cell(Page(), cell)
    text = f"the fastest of other plugins, acme.right, takes {ratio:.3f} times as long as what is picked"
    assert text in " ".join(capsys.readouterr().out.split())
    alone = replace(cell, kernels=tuple(m for m in cell.kernels if m.kernel != "acme.right"))
    assert alone.rival is None


def test_replays_are_timed_of_kernels_that_may_be_captured(acme: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(tuple(questions("rms_norm", [launch_row("rms_norm")], ["float32"], HERE)), chosen_sizes=True)
    suite = Suite(acme("right"), CPU, Filter(("acme.right", "torch.rms_norm_cpu")), 0.0, replays=True)
    replayed: list[int] = []

    def captured(self: Clock, call: Callable) -> Callable:
        return lambda: replayed.append(call() is not None)

    monkeypatch.setattr(Clock, "captured", captured)
    cell = one(list(suite.run(plan)))
    assert [(m.kernel, m.status) for m in cell.kernels] == [("torch.rms_norm_cpu", "timed")]
    assert cell.kernels[0].latency is not None
    assert len(replayed) >= cell.kernels[0].latency.launches
    assert [r["code"] for r in cell.rejected["acme.right"]] == ["not_capturable"]

    def reads(self: Clock, call: Callable) -> Callable:
        raise RuntimeError("it waits for the device")

    monkeypatch.setattr(Clock, "captured", reads)
    (failed,) = one(list(suite.run(plan))).kernels
    assert (failed.status, failed.reason) == ("failed", "RuntimeError: it waits for the device")


@pytest.mark.usefixtures("_patient")
def test_a_wrong_kernel_is_shown_and_not_timed_and_one_that_raises_with_its_reason(acme: Callable) -> None:
    cell = one(measured(acme("right", "wrong", "broken", "sometimes"), "rms_norm"))
    found = {m.kernel: (m.status, m.reason, m.latency is None) for m in cell.kernels}
    assert found["acme.right"] == ("timed", "", False)
    text = "y differs from the reference's in row 1, by 1 of its size (at most 0.01)"
    assert found["acme.wrong"] == ("wrong", text, True)
    assert found["acme.broken"] == ("failed", "RuntimeError: no such luck", True)
    assert found["acme.sometimes"] == ("failed", "ValueError: enough", True)
    assert found["reference.rms_norm"][0] == "timed"


@pytest.mark.parametrize(
    ("name", "source", "text"),
    [
        ("right", "acme.right", "compared with acme.right: the reference cannot run here (RuntimeError: no memory)"),
        (
            "broken",
            None,
            "nothing was compared: neither the reference (RuntimeError: no memory) nor another kernel ran",
        ),
    ],
)
def test_why_the_reference_cannot_run_is_kept_and_shown(
    acme: Callable,
    name: str,
    source: str | None,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def forward(*_: object, **values: object) -> None:
        raise RuntimeError("no memory\nand more")

    monkeypatch.setattr("portakernel.references.rms_norm.forward", forward)
    monkeypatch.setenv("COLUMNS", "200")
    cell = one(measured(acme(name), "rms_norm", admitted=Filter((f"acme.{name}",))))
    found = cell.to_json()
    assert (found["checked_against"], found["reference_failure"]) == (source, "RuntimeError: no memory")
    print_cell(Page(), cell)
    assert capsys.readouterr().out.splitlines()[-1] == f"  {text}"


def test_filters_say_who_takes_part_and_not_who_is_picked(acme: Callable) -> None:
    dispatcher = acme("right", "wrong")
    names = {
        "all": Filter(reference=False),
        "plugin": Filter(plugins=("acme",)),
        "kernel": Filter(kernels=("acme.right", "reference.rms_norm")),
    }
    found = {key: one(measured(dispatcher, "rms_norm", admitted=admitted)) for key, admitted in names.items()}
    assert {key: {m.kernel for m in cell.kernels} for key, cell in found.items()} == {
        "all": {"torch.rms_norm_cpu", "acme.right", "acme.wrong"},
        "plugin": {"acme.right", "acme.wrong"},
        "kernel": {"acme.right", "reference.rms_norm"},
    }
    assert {cell.chosen for cell in found.values()} == {"torch.rms_norm_cpu"}
    assert found["plugin"].chosen_ratio is None


def test_what_a_manifest_switches_off_is_measured_where_it_is_named(acme: Callable) -> None:
    dispatcher = acme("right")
    kernels = dict(dispatcher.registry.kernels)
    kernels["acme.right"] = replace(kernels["acme.right"], disabled="it is wrong where nobody looks")
    dispatcher.registry.kernels = MappingProxyType(kernels)
    (rejection,) = one(measured(dispatcher, "rms_norm")).rejected["acme.right"]
    assert rejection["code"] == "disabled"
    (named,) = one(measured(dispatcher, "rms_norm", admitted=Filter(("acme.right",)))).kernels
    assert (named.kernel, named.status) == ("acme.right", "timed")


def test_a_policy_takes_kernels_out_and_says_so() -> None:
    dispatcher = Dispatcher()
    token = dispatcher.context_layers.set((make_layer("command line", (), (), ("torch",)),))
    try:
        cell = one(measured(dispatcher, "rms_norm"))
    finally:
        dispatcher.context_layers.reset(token)
    assert [m.kernel for m in cell.kernels] == ["reference.rms_norm"]
    assert [r["code"] for r in cell.rejected["torch.rms_norm_cpu"]] == ["denied_by_policy"]


def test_ops_without_backward_kernels_and_sizes_for_accelerators_are_left_out() -> None:
    large = GridRow("large", {"x": (1 << 15, 1 << 14)})
    found = measured(Dispatcher(), "quantize_fp8", rows=[large], backward=True, chosen_sizes=False)
    assert [(entry.op, entry.case, entry.phase) for entry in found if isinstance(entry, LeftOut)] == [
        ("quantize_fp8", "large", "backward"),
        ("quantize_fp8", "large", "forward"),
    ]


def test_the_gradient_of_a_kernel_that_saves_its_own_is_timed_with_what_it_saved(acme: Callable) -> None:
    cell = one(measured(Dispatcher(), "attention", forward=False, backward=True))
    kernels = {m.kernel: m.status for m in cell.kernels}
    # torch.attention_flash_cpu saves its own log-sum-exp, PyTorch records the gradients of the others
    assert kernels["torch.attention_flash_cpu"] == "timed"
    assert kernels["torch.attention_math"] == "timed"
    assert kernels["torch.attention_flash_cpu_recorded"] == "timed"
    assert cell.chosen == "torch.attention_flash_cpu_recorded"


def test_host_times_of_launches() -> None:
    (question,) = questions("rms_norm", [launch_row("rms_norm")], ["float32"], HERE)
    cell = time_launches(Dispatcher(), question, CPU, stopwatch(CPU), Filter(), seconds=0.0, seed=0)
    rows = cell.to_json()["kernels"]
    assert {row["kernel"] for row in rows} == {"torch.rms_norm_cpu", "reference.rms_norm"}
    assert all(row["host_us"] > 0 and row["calls"] == 100 and row["reason"] == "" for row in rows)


def test_a_launch_that_raises_has_its_reason(acme: Callable) -> None:
    (question,) = questions("rms_norm", [launch_row("rms_norm")], ["float32"], HERE)
    admitted = Filter(kernels=("acme.broken",))
    cell = time_launches(acme("broken"), question, CPU, stopwatch(CPU), admitted, seconds=0.0, seed=0)
    (row,) = cell.to_json()["kernels"]
    assert (row["host_us"], row["reason"]) == (None, "RuntimeError: no such luck")


def test_a_clock_rotates_among_more_inputs_where_they_are_small() -> None:
    assert [Clock().sets(size) for size in (0, 1 << 10, 1 << 25, 1 << 30)] == [8, 8, 4, 2]


def test_a_latency_is_the_median_of_the_rounds_medians() -> None:
    found = Latency.of([[1.0, 9.0, 2.0], [4.0], [3.0, 3.0]])
    assert (found.median_us, found.rounds, found.launches) == (3.0, 3, 6)
    assert (found.p20_us, found.p80_us) == (pytest.approx(2.4), pytest.approx(3.6))


def test_routing_is_the_geometric_mean_and_the_worst() -> None:
    cells = [
        cell for cell in measured(Dispatcher(), "rms_norm", dtypes=["float32", "bfloat16"]) if isinstance(cell, Cell)
    ]
    found = routing(cells)
    ratios = [cell.chosen_ratio for cell in cells]
    assert found["cells"] == 2
    assert found["worst"] == max(ratios)
    assert found["geometric_mean"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
    assert routing([])["worst"] is None


@pytest.mark.parametrize(
    ("got", "want", "text"),
    [
        (torch.ones(3, 4), torch.ones(3, 4) * 1.001, ""),
        (torch.tensor([[1.0, torch.inf]]), torch.tensor([[1.0, torch.inf]]), ""),
        (torch.tensor([[1.0, torch.nan]]), torch.tensor([[1.0, torch.nan]]), ""),
        (torch.zeros(2, 2), torch.zeros(2, 2), ""),
        (None, None, ""),
        (torch.ones(2, dtype=torch.float16), torch.ones(2), "y is float16 of shape (2,), not float32 of shape (2,)"),
        (None, torch.ones(2), "y is missing"),
        (
            torch.tensor([[1.0, 1.0], [1.0, torch.nan]]),
            torch.ones(2, 2),
            "y differs from the reference's in row 1, where one of them is not a finite number (at most 0.01)",
        ),
        (
            torch.tensor([1.0, 1.0, 2.0]),
            torch.ones(3),
            "y differs from the reference's in row 2, by 1 of its size (at most 0.01)",
        ),
    ],
)
def test_results_are_near_or_it_is_said_where_not(got: object, want: object, text: str) -> None:
    assert difference(got, want, "y") == text


def test_narrow_formats_are_compared_as_numbers() -> None:
    want = torch.randn(8, 32).to(torch.float8_e4m3fn)
    assert difference(want.clone(), want, "q") == ""
    turned = want.view(torch.uint8).clone()
    turned[3] ^= 0x80
    assert difference(turned.view(torch.float8_e4m3fn), want, "q").startswith("q differs from the reference's in row 3")


def test_gradients_that_pytorch_records_are_compared_by_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cell, "faster_than_chosen", lambda _: ("reference.layer_norm",))
    monkeypatch.setattr(steps, "_FEWEST_ROUNDS", 1)
    cell = one(measured(dispatcher(), "layer_norm", forward=False, backward=True))
    assert cell.chosen == "torch.layer_norm_recorded"
    assert list(cell.steps) == ["torch.layer_norm_recorded", "reference.layer_norm"]
    assert cell.to_json()["steps_us"] == cell.steps
    assert one(measured(dispatcher(), "layer_norm")).steps == {}  # forward without a gradient has no step


def test_steps_of_kernels_are_calls_that_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    (question,) = questions("layer_norm", [launch_row("layer_norm")], ["float32"], HERE)
    operands = draw(question, Arguments(own_contracts()["layer_norm"], dispatcher().registry), CPU, 0)
    prepare_backward(dispatcher(), [operands], 0)
    called: list[str] = []
    function = portakernel.ops.layer_norm

    def noted(*given: object, kernel: str, **named: object) -> object:
        called.append(kernel)
        return function(*given, kernel=kernel, **named)

    monkeypatch.setattr(portakernel.ops, "layer_norm", noted)
    names, failed = ("torch.layer_norm_recorded", "reference.layer_norm"), list[str]()
    found = steps.step_times(
        operands, (*names, "triton.layer_norm"), stopwatch(CPU), 0.0, lambda kernel, _: failed.append(kernel)
    )
    assert set(called) == {*names, "triton.layer_norm"}
    assert failed == ["triton.layer_norm"]  # which a CPU has not
    assert list(found) == list(names)
    assert all(us > 0 for us in found.values())
    only = steps.step_times(operands, names[:1], stopwatch(CPU), 0.0, lambda *_: None)
    assert only == {}
