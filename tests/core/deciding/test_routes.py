"""Plans and measurements: heard below every policy, for calls of their kind and sizes, on devices of their kind."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import pytest
import torch

from portakernel.calling.bound_kernel import bind_kernel
from portakernel.claims.capability import ReasonCode
from portakernel.claims.request import Phase
from portakernel.deciding.policies import intern_policy, make_layer
from portakernel.errors import NoKernelError
from portakernel.tensors.units import units_of
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind
from portakernel.words.target import Device, Target

ACME = Device(Target("acme", "acme1"), "Acme 1", "cpu")


@dataclass(eq=False)
class Known:
    """Choices by op and place; a plan where it is given as one."""

    by_place: dict[tuple[str, tuple[str, int]], list[Choice]] = field(default_factory=dict)
    name: str = "p.yaml"
    locked: bool = False
    asked: list[str] = field(default_factory=list)

    def places(self):
        return tuple(dict.fromkeys(place for _, place in self.by_place))

    def notes(self, kind, dims, place, driver):
        return ("what there is to say",)

    def wrong(self, op, place):
        return {}

    def silence(self, kind, dims, place):
        return ""

    def choices(self, op, place):
        self.asked.append(op)
        return Choices(self.by_place.get((op, place), ()))


def chosen(kernel, request, kernels, *, units=None, why="", **bounds):
    """What knows that ``kernel`` is for calls of the kind of ``request``, within bounds."""
    place = str(request.target), units_of(ACME) if units is None else units
    return {(request.op, place): [Choice(kernel, Kind.of(request, kernels), bounds, f"p.yaml:7 ({kernel})", why)]}


@pytest.fixture
def two(world):
    """Two kernels of ``add``, of which the first by name has the higher priority, and their dispatcher."""
    world.plugin("p", {"op": "add", "priority": 20})
    world.plugin("q", {"op": "add", "priority": 10})
    return world.dispatcher()


def asked(world, rows=64, **keys):
    """A question about a device of this machine."""
    return replace(world.request("add", shapes={"x": (rows,)}, **keys), device=ACME)


def test_a_measurement_goes_before_priority_within_its_bounds(world, two):
    request = asked(world)
    kernels = two.registry.for_op("add")
    why = "0.81 of the time of p.add"
    two.routes.set(None, Known(chosen("q.add", request, kernels, why=why, M=(32, 128))))
    found = two.decide(request)
    assert (found.chosen.name, found.why) == ("q.add", f"p.yaml:7 (q.add) prefers it: {why}")
    loser = found.candidate("p.add").rejections[0]
    assert (loser.code, loser.text) == (ReasonCode.LOWER_PRIORITY, "p.yaml:7 (q.add) puts q.add before it")
    assert [two.decide(asked(world, rows)).chosen.name for rows in (31, 32, 128, 129)] == [
        "p.add", "q.add", "q.add", "p.add",
    ]  # fmt: skip


def test_what_was_measured_with_other_threads_is_not_used(world, two, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    request, before = asked(world), torch.get_num_threads()
    two.routes.set(None, Known(chosen("q.add", request, two.registry.for_op("add"), units=4)))
    try:
        torch.set_num_threads(4)
        assert two.decide(request).chosen.name == "q.add"
        torch.set_num_threads(2)
        assert two.decide(request).chosen.name == "p.add"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "other",
    [
        {"dtypes": "float16"},
        {"phase": Phase.TRAINING},
        {"facts": {"x.contiguous": False, "x.flat_rows": False}},
    ],
)
def test_a_call_of_another_kind_is_not_its_business(world, other):
    world.plugin("p", {"op": "add", "priority": 20, "limits": {"x.stride_last": {"max": 1}, "M": {"min": 0}}})
    world.plugin("q", {"op": "add", "priority": 10, "limits": {"x.flat_rows": {"in": [False, True]}}})
    world.plugin("r", {"op": "add", "limits": {"x.contiguous": {"in": [True]}}})
    now = world.dispatcher()
    now.routes.set(None, Known(chosen("q.add", asked(world), now.registry.for_op("add"))))
    assert now.decide(asked(world)).chosen.name == "q.add"
    assert now.decide(asked(world, **other)).chosen.name == "p.add"


def test_another_target_or_number_of_units_is_another_device(world, two):
    request, kernels = asked(world), two.registry.for_op("add")
    for other in (request, replace(request, target=Target("acme", "acme2"))):
        two.routes.set(None, Known(chosen("q.add", other, kernels, units=units_of(ACME) + (other is request))))
        assert two.decide(request).chosen.name == "p.add"


def test_of_absent_hardware_the_only_kind_of_device_is_meant(world, two):
    request, kernels = asked(world), two.registry.for_op("add")
    known = chosen("q.add", request, kernels, units=132)
    two.routes.set(Known(known), None)
    assert two.decide(replace(request, device=None)).chosen.name == "q.add"
    two.routes.set(Known(known | chosen("q.add", request, kernels, units=114)), None)
    assert two.decide(replace(request, device=None)).chosen.name == "p.add"


def test_every_policy_goes_before_plans_and_measurements(world, two):
    request, kernels = asked(world), two.registry.for_op("add")
    for sources in ((Known(chosen("q.add", request, kernels)), None), (None, Known(chosen("q.add", request, kernels)))):
        two.routes.set(*sources)
        assert two.decide(request).chosen.name == "q.add"
        for wish in ({"use": "p.add"}, {"prefer": "p"}):
            policy = intern_policy((make_layer("context", **wish),))
            assert two.decide(request, policy).chosen.name == "p.add"


def test_a_measurement_yields_and_a_plan_is_strict_where_its_kernel_is_denied(world, two):
    request, kernels = asked(world), two.registry.for_op("add")
    denied = intern_policy((make_layer("context", deny="q.add"),))
    two.routes.set(None, Known(chosen("q.add", request, kernels)))
    assert two.decide(request, denied).chosen.name == "p.add"
    two.routes.set(Known(chosen("q.add", request, kernels)), None)
    found = two.decide(request, denied)
    assert found.chosen is None
    assert "p.yaml:7 (q.add) uses q.add strictly" in str(found)


def test_a_plan_goes_before_measurements_and_where_it_is_locked_covers_every_call(world, two):
    request, kernels = asked(world), two.registry.for_op("add")
    plan = Known(chosen("q.add", request, kernels, M=(1, 64)))
    measured = Known(chosen("p.add", request, kernels))
    two.routes.set(plan, measured)
    assert [two.decide(asked(world, rows)).chosen.name for rows in (64, 65)] == ["q.add", "p.add"]
    plan.locked = True
    found = two.decide(asked(world, 65))
    assert found.chosen is None
    text = (
        "p.yaml is locked, and has no entry for such calls; the nearest is p.yaml:7 (q.add): M 65 lies outside of 1..64"
    )
    assert {(r.code, r.text) for c in found.candidates for r in c.rejections} >= {(ReasonCode.NOT_IN_PLAN, text)}
    named = intern_policy((make_layer("context", use="p.add"),))
    assert two.decide(asked(world, 65), named).chosen.name == "p.add"


def test_a_locked_plan_says_what_it_has_for_this_hardware_and_op(world, two):
    request, kernels = asked(world), two.registry.for_op("add")

    def told():
        (text,) = {r.text for c in two.decide(request).candidates for r in c.rejections}
        return text.removeprefix("p.yaml is locked, and has no entry for such calls; ")

    units = units_of(ACME)
    two.routes.set(Known(chosen("q.add", request, kernels, units=units + 1), locked=True), None)
    assert told() == f"it has parts for acme:acme1/{units + 1}, and none for this hardware"
    two.routes.set(Known({("sub", ("acme:acme1", units)): []}, locked=True), None)
    assert told() == "it has none for add there"
    training = replace(request, phase=Phase.TRAINING)
    two.routes.set(Known(chosen("q.add", training, kernels), locked=True), None)
    assert told() == "the nearest is p.yaml:7 (q.add): phase: training there, this call inference"


def test_a_backward_that_reads_what_its_forward_alone_saved_is_chosen_with_that(world):
    """An entry for backward, and a lock, speak of those that read what any forward saves."""
    world.plugin("p", {"op": "rms_norm", "saves": "own", "backward": "fake_p:backward"})
    world.plugin("q", {"op": "rms_norm", "saves": "contract", "backward": "fake_q:backward"})
    now = world.dispatcher()
    request = replace(world.request("rms_norm", phase=Phase.BACKWARD), device=ACME)
    known = Known(chosen("q.rms_norm", request, now.registry.for_op("rms_norm")), locked=True)
    for sources in ((known, None), (None, known), (Known(locked=True), None)):
        now.routes.set(*sources)
        found = now.decide(replace(request, saved_by="p.rms_norm"))
        assert found.chosen.name == "p.rms_norm"
        assert now.routes.notes(found.request) == ()


def test_a_third_party_s_kernel_serves_where_it_was_measured_to_be_faster(world):
    world.plugin("p", {"op": "add"})
    world.plugin("theirs", {"op": "add"}, first_party=False)
    now = world.dispatcher()
    request = asked(world)
    assert now.decide(request).chosen.name == "p.add"
    now.routes.set(None, Known(chosen("theirs.add", request, now.registry.for_op("add"))))
    assert now.decide(request).chosen.name == "theirs.add"


def test_until_what_was_fastest_is_built_who_needs_no_build_stands_in(world):
    world.plugin("p", {"op": "add", "priority": 20})
    world.plugin("q", {"op": "add", "priority": 10})
    source = "from portakernel.claims.capability import ReasonCode, Rejection\n"
    source += "def build(request, tensors, values): ...\n"
    source += "def built(request): return Rejection(ReasonCode.NEEDS_BUILD, 'is not built')\n"
    world.plugin("r", {"op": "add", "build": "fake_r:build", "built": "fake_r:built"}, source=source)
    now = world.dispatcher()
    known = chosen("r.add", asked(world), now.registry.for_op("add"), why="0.7 of the time")
    known = {key: [replace(one, ready="q.add") for one in found] for key, found in known.items()}
    now.routes.set(None, Known(known))
    found = now.decide(asked(world))
    assert (found.chosen.name, found.why) == ("q.add", "p.yaml:7 (r.add) prefers it until r.add is built")
    assert [str(one.code) for one in found.candidate("r.add").rejections] == ["needs_build"]


def test_compiled_graphs_are_left_alone(world, two):
    request, kernels = asked(world), two.registry.for_op("add")
    two.routes.set(Known(chosen("q.add", request, kernels)), None)
    assert two.decide(replace(request, compiled=True)).chosen.name != "q.add"


def test_choices_are_read_once_for_an_op_and_a_place(world, two):
    known = Known(chosen("q.add", asked(world), two.registry.for_op("add")))
    two.routes.set(None, known)
    for rows in range(1, 20):
        two.decide(asked(world, rows))
    assert known.asked == ["add"]


# --- the hot path -----------------------------------------------------------------------------------------------------


def measured_here(ops, kernel, **bounds):
    """What knows of calls of ``add`` like those below, on this machine's CPU."""
    x = torch.randn(4)
    request = ops.caller("add").explain((x, x), (), Phase.INFERENCE).request
    return Known(chosen(kernel, request, ops.dispatcher.registry.for_op("add"), **bounds))


def test_calls_go_by_what_was_measured_each_size_by_its_cell(ops):
    for rows in (10, 100, 1000):
        ops.add(torch.randn(rows), torch.randn(rows))
    assert ops.served("add") == {"raw_kernels.add": 3}
    ops.dispatcher.routes.set(None, measured_here(ops, "torch.add", M=(50, 200)))
    ops.caller("add").reroute()
    for rows in (49, 50, 200, 201, 100, 10):
        ops.add(torch.randn(rows), torch.randn(rows))
    assert ops.served("add") == {"raw_kernels.add": 6, "torch.add": 3}
    assert len(ops.caller("add").table.entries) == 2


def test_without_choices_the_key_is_that_of_claims_alone(ops):
    x = torch.randn(4)
    ops.add(x, x)
    before = list(ops.caller("add").table.entries)
    ops.caller("add").reroute()
    ops.add(x, x)
    assert [len(key) for key in ops.caller("add").table.entries] == [len(key) for key in before]
    for rows in range(1, 300):
        ops.add(torch.randn(rows), torch.randn(rows))
    assert len(ops.caller("add").table.entries) == 1


def test_any_number_of_lengths_makes_no_more_keys_than_there_are_kernels_chosen(ops):
    known = measured_here(ops, "torch.add")
    place = next(iter(known.by_place))
    one = known.by_place[place][0]
    known.by_place[place] = [replace(one, bounds={"M": (low, low + 50)}) for low in range(0, 4000, 100)]
    ops.dispatcher.routes.set(None, known)
    ops.caller("add").reroute()
    for rows in range(4000):
        ops.add(torch.zeros(rows), torch.zeros(rows))
    assert len(ops.caller("add").table.entries) == 2
    counts = ops.served("add")
    assert counts["torch.add"] == 51 * 40
    assert counts["raw_kernels.add"] == 49 * 40


def test_a_handle_is_the_plan_s_when_it_is_bound_and_its_own_thereafter(ops):
    x, longer, caller = torch.randn(4), torch.randn(9), ops.caller("add")
    plan = measured_here(ops, "torch.add", M=(1, 8))
    plan.locked = True
    ops.dispatcher.routes.set(plan, None)
    handle = bind_kernel(caller, (x, x), (), None)
    assert handle.kernel == "torch.add"
    handle(longer, longer)  # leading sizes may change, and the kernel does not
    with pytest.raises(NoKernelError, match=r"p\.yaml is locked"):
        bind_kernel(caller, (longer, longer), (), None)
    ops.dispatcher.routes.set(Known(locked=True), None)
    handle(x, x)


def test_parameters_that_choices_tell_apart_have_to_be_known_when_an_op_is_made(ops):
    known = measured_here(ops, "torch.add")
    place = next(iter(known.by_place))
    one = known.by_place[place][0]
    known.by_place[place] = [replace(one, kind=replace(one.kind, features={"softcap": 30.0}))]
    ops.dispatcher.routes.set(None, known)
    assert ops.caller("add").reroute() == {"softcap"}
