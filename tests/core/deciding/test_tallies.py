"""Decisions counted by what named the kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.deciding.tallies import Decided, Tallies, source_of
from portakernel.tensors.units import units_of
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind
from portakernel.words.target import Device, Target

ACME = Device(Target("acme", "acme1"), "Acme 1", "cpu")


@dataclass(eq=False)
class Known:
    """One choice: ``q.add`` for calls like the request."""

    request: Any
    kernels: Any
    name: str = "p.yaml"
    locked: bool = False

    def places(self):
        return ((str(self.request.target), units_of(ACME)),)

    def choices(self, op, place):
        kind = Kind.of(self.request, self.kernels)
        return Choices([Choice("q.add", kind, {"M": (1, 64)}, "p.yaml:7", "")] if op == "add" else [])

    def wrong(self, op, place):
        return {}

    def silence(self, kind, dims, place):
        return "" if self.choices("add", place).find(kind, dims) is not None else "gap"


@pytest.fixture
def now(world):
    world.plugin("p", {"op": "add", "priority": 20})
    world.plugin("q", {"op": "add", "priority": 10})
    return world.dispatcher()


@pytest.fixture
def known(world, now):
    return Known(replace(world.request("add", shapes={"x": (8,)}), device=ACME), now.registry.for_op("add"))


def test_what_named_the_kernel_is_its_source(world, now, known):
    policy = world.dispatcher(PREFER="q").policy()
    request = known.request
    assert source_of(now.decide(request)) == "priority"
    assert source_of(now.decide(request, policy)) == "policy"
    now.routes.set(known, None)
    assert source_of(now.decide(request)) == "plan"
    assert source_of(now.decide(request, policy)) == "policy"
    now.routes.set(None, known)
    assert source_of(now.decide(request)) == "measured"
    assert source_of(now.decide(replace(request, dims={"M": 65}))) == "priority"


def test_what_was_named_and_cannot_serve_leaves_it_to_priorities(world, now, known):
    policy = world.dispatcher(PREFER="q").policy()
    refused = {"q.add": Rejection(ReasonCode.CANNOT_RUN, "not today")}
    assert now.decide(known.request, policy, refused).chosen.name == "p.add"
    assert source_of(now.decide(known.request, policy, refused)) == "priority"
    denied = world.dispatcher(DENY="p.add,q.add").policy()
    assert source_of(now.decide(known.request, denied)) == "priority"


def test_decisions_and_their_time_add_up(now, known):
    tallies, decision = Tallies(), now.decide(known.request)
    for seconds in (0.25, 0.5):
        tallies.add(decision, seconds)
    assert tallies.decisions() == {Decided("add", "priority"): 2}
    assert tallies.seconds() == {"add": 0.75}


def test_nothing_was_to_be_measured_where_a_policy_or_a_plan_names_the_kernel_or_a_graph_holds_it(world, now, known):
    def silence(request, policy=None):
        decision = now.decide(request, policy)
        return now.routes.unmeasured(decision.request, decision.wishes)

    request = known.request
    assert silence(request) == "no_record"
    now.routes.set(None, known)
    assert silence(request) == ""
    assert silence(replace(request, dims={"M": 65})) == "gap"
    assert silence(replace(request, dims={"M": 65}, compiled=True)) == ""
    assert silence(replace(request, target=Target("acme", "acme2"))) == "no_record"
    assert silence(replace(request, dims={"M": 65}), world.dispatcher(PREFER="p").policy()) == ""
    now.routes.set(known, None)
    assert silence(request) == ""
