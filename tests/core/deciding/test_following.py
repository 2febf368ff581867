"""What ranks compare and take over: a plan and measurements as data, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from portakernel.deciding.following import Following
from portakernel.errors import PortakernelError
from portakernel.tensors.units import units_of
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind
from portakernel.words.target import Device, Target

ACME = Device(Target("acme", "acme1"), "Acme 1", "cpu")
PLACE = "acme:acme1", units_of(ACME)


class Known:
    """One choice, for one place."""

    def __init__(self, choice: Choice, *, locked: bool = False) -> None:
        self.choice, self.locked, self.name = choice, locked, "p.yaml"

    def places(self):
        return (PLACE,)

    def choices(self, op, place):
        return Choices([self.choice] if (op, place) == ("add", PLACE) else [])

    def notes(self, kind, dims, place, driver):
        return ()

    def wrong(self, op, place):
        return {}


@pytest.fixture
def world_of_two(world):
    world.plugin("p", {"op": "add", "priority": 20})
    world.plugin("q", {"op": "add", "priority": 10})
    return world


def asked(world, rows=64):
    return replace(world.request("add", shapes={"x": (rows,)}), device=ACME)


def choice(world, now, kernel, **bounds):
    return Choice(kernel, Kind.of(asked(world), now.registry.for_op("add")), bounds, "p.yaml:3", "0.8 of the time")


@pytest.mark.parametrize("locked", [False, True])
def test_another_rank_follows_what_the_first_one_does(world_of_two, locked):
    first, other = world_of_two.dispatcher(), world_of_two.dispatcher()
    plan = Known(choice(world_of_two, first, "q.add", M=(1, 64)), locked=locked)
    first.routes.set(plan, Known(choice(world_of_two, first, "q.add", M=(100, 200))))
    here = Following(other.registry, other.routes, ACME)
    assert here.target == f"acme:acme1/{PLACE[1]}"
    here.adopt(Following(first.registry, first.routes, ACME).decisions())
    for rows in (64, 65, 150):
        mine, theirs = other.decide(asked(world_of_two, rows)), first.decide(asked(world_of_two, rows))
        assert (mine.chosen and mine.chosen.name) == (theirs.chosen and theirs.chosen.name)
    assert "rank 0: p.yaml:3" in other.decide(asked(world_of_two)).why


def test_what_was_agreed_on_stays_until_the_process_ends(world_of_two):
    now = world_of_two.dispatcher()
    Following(now.registry, now.routes, ACME).adopt({})
    with pytest.raises(PortakernelError, match=r"was set by portakernel\.agree and stays as it is"):
        now.routes.set(None, None)
    with pytest.raises(PortakernelError, match=r"^portakernel\.agree was called before, .* ends: call it once$"):
        Following(now.registry, now.routes, ACME).adopt({})


@pytest.mark.parametrize(("mine", "first", "lost"), [(True, False, True), (True, True, False), (False, False, False)])
def test_a_lock_that_the_first_rank_does_not_have_is_lost_aloud(world_of_two, mine, first, lost):
    other, now = world_of_two.dispatcher(), world_of_two.dispatcher()
    other.routes.set(Known(choice(world_of_two, other, "q.add", M=(1, 64)), locked=first), None)
    now.routes.set(Known(choice(world_of_two, now, "q.add", M=(1, 8)), locked=mine), None)
    here = Following(now.registry, now.routes, ACME)
    here.adopt(Following(other.registry, other.routes, ACME).decisions())
    text = (
        "agree: p.yaml is locked, and rank 0, which is followed, has no locked plan: what it does not cover is no"
        " longer refused here; give all ranks the same plan (PORTAKERNEL_PLAN)"
    )
    assert here.lost_lock == (text if lost else "")


def test_the_sources_are_those_of_every_kernel(world_of_two):
    now = world_of_two.dispatcher()
    sources = Following(now.registry, now.routes, ACME).sources()
    assert sources.keys() == now.registry.kernels.keys()
    assert all(sources.values())
