"""Ranks agree on one set of decisions with three collectives, or all of them say who differs."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import portakernel
from portakernel import runtime
from portakernel.agreement import agree as agree_here
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ConfigWarning, PortakernelError, RankDisagreement
from portakernel.plan.plan import Place, Plan

H200 = "nvidia:sm_90/132"
WARM = {"decisions": {H200: [{"dtype": "bfloat16", "M": [1, 512], "use": "triton.rms_norm"}]}}
OTHER = {"decisions": {H200: [{"dtype": "bfloat16", "M": [1, 64], "use": "inductor.rms_norm"}]}}
COLD: dict[str, Any] = {"decisions": {}}
THREE = {"all_gather": 2, "broadcast": 1}


def whole(rank: dict[str, Any]) -> Any:
    return {target: {"rms_norm": entries} for target, entries in rank["decisions"].items()}


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_that_have_decided_the_same_go_on_with_it(agree: Any, count: int) -> None:
    for found in agree(*[WARM] * count):
        assert found["adopted"] == [whole(WARM)]
        assert found["collectives"] == THREE


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_follow_the_first_where_it_alone_has_a_warm_store(agree: Any, count: int) -> None:
    for found in agree(WARM, *[COLD] * (count - 1)):
        assert found["adopted"] == [whole(WARM)]
        assert found["collectives"] == THREE


def test_ranks_follow_a_cold_first_one_and_one_that_differs_alone(agree: Any) -> None:
    for found in agree(COLD, WARM, OTHER, COLD):
        assert found["adopted"] == [{}]
        assert found["collectives"] == THREE


@pytest.mark.parametrize("count", [2, 4])
def test_every_rank_raises_where_one_has_another_source(agree: Any, count: int) -> None:
    last = {**WARM, "sources": {"triton.rms_norm": "77aa"}}
    for found in agree(*[WARM] * (count - 1), last):
        assert (found["error"], found["adopted"]) == ("RankDisagreement", [])
        assert found["differences"] == [[count - 1, "triton.rms_norm", "77aa", "c718"]]
        assert f"  rank {count - 1}: triton.rms_norm has the source 77aa; on rank 0 it has c718\n" in found["text"]
        assert found["collectives"] == THREE


def test_a_kernel_that_one_rank_has_alone_is_a_difference_too(agree: Any) -> None:
    more = {**WARM, "sources": {"triton.rms_norm": "c718", "acme.rms_norm": "aa"}}
    for found in agree(more, WARM, COLD):
        assert found["differences"] == [[rank, "acme.rms_norm", "", "aa"] for rank in (1, 2)]
        assert "rank 1: acme.rms_norm has no source, it is not installed; on rank 0 it has aa" in found["text"]


def test_ranks_with_other_hardware_follow_the_first_ones_decisions_for_it(agree: Any) -> None:
    both = {"decisions": {**WARM["decisions"], "amd:gfx942/304": OTHER["decisions"][H200]}}
    for found in agree(both, {**COLD, "target": "amd:gfx942/304"}):
        assert found["adopted"] == [whole(both)]
        assert found["collectives"] == THREE


def test_ranks_that_differ_by_units_are_told_where_that_decides_otherwise(agree: Any) -> None:
    entries = WARM["decisions"][H200]
    named = {units: [{"entry": entry, "where": f"plan.yaml:{units}"} for entry in entries] for units in (1, 2)}
    alike = {"decisions": {f"cpu:x86_64/{units}": several for units, several in named.items()}}
    one, two, none = ({**WARM, **more} for more in (
        {"decisions": {"cpu:x86_64/2": entries}, "target": "cpu:x86_64/2"},
        {"decisions": {}, "target": "cpu:x86_64/1"},
        {"decisions": {}, "target": "cpu:x86_64/1"},
    ))  # fmt: skip
    for found in agree(one, two, none):
        assert found["doubt"] == (
            "agree: the ranks' devices differ by their units: cpu:x86_64/2 on rank 0; cpu:x86_64/1 on ranks 1, 2: what"
            " is followed on one is not followed on the other, and they may run different kernels; give all as many"
            " threads (OMP_NUM_THREADS)"
        )
        assert found["collectives"] == THREE
    for found in agree({**one, **alike}, two):
        assert found["doubt"] == ""


def test_a_rank_that_cannot_say_what_it_follows_keeps_nobody_waiting(agree: Any) -> None:
    for ranks, at in (((WARM, {**WARM, "fails": "no such store"}), 1), (({**WARM, "fails": "no such store"}, COLD), 0)):
        for found in agree(*ranks):
            assert (found["error"], found["adopted"]) == ("RankDisagreement", [])
            assert found["others"] == [[at, "OSError: no such store"]]
            assert found["collectives"] == THREE


def test_decisions_that_are_too_many_to_send_are_refused_on_every_rank(agree: Any) -> None:
    for found in agree({**WARM, "times": 20000}, WARM):
        assert "rank 0: its decisions have 1" in found["text"]
        assert "bytes; at most 1048576 are sent" in found["text"]
        assert found["collectives"] == THREE


@pytest.mark.parametrize("how", ["gone", "silent"])
def test_a_lost_rank_ends_within_the_timeout(agree: Any, how: str) -> None:
    *left, _ = agree(WARM, WARM, {**WARM, "lost": how}, timeout_s=3)
    for found in left:
        assert (found["error"], found["adopted"]) == ("RankLostError", [])
        assert found["waited_for"] == "the digests"
        assert found["text"].startswith("agree: the digests of 3 ranks did not all come: ")
        assert found["text"].endswith("Each rank of the group calls portakernel.agree, once; see which one has ended")
        assert found["seconds"] < 30


def test_a_group_agrees_on_its_own_and_again(agree: Any) -> None:
    for found in agree(WARM, COLD, group=[0, 1], calls=2):
        assert found["adopted"] == [whole(WARM)] * 2
        assert found["collectives"] == {name: 2 * times for name, times in THREE.items()}


def test_what_is_no_group_is_told_so(agree: Any) -> None:
    (found,) = agree(WARM, group="dp")
    assert (found["error"], found["adopted"], found["collectives"]) == ("ArgumentTypeError", [], {})
    assert found["text"] == (
        "agree: group is 'dp', not a ProcessGroup; give what torch.distributed.new_group returned, on its ranks alone,"
        " or None for all ranks"
    )


def test_a_rank_whose_lock_is_lost_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    monkeypatch.setattr("portakernel.agreement.agree", lambda followed, group: followed.adopt({}) or "")
    plan = Plan({Place("nvidia:sm_90", 132): {}}, {}, "everything")
    monkeypatch.setattr(runtime.dispatcher().routes, "plan", plan)
    with pytest.warns(ConfigWarning, match=r"^agree: .* is locked, and rank 0, which is followed, has no locked plan:"):
        portakernel.agree()


def test_one_process_without_a_group_is_told_what_to_do() -> None:
    with pytest.raises(PortakernelError, match=r"^agree: torch\.distributed is not initialised; call torch"):
        agree_here(None)  # type: ignore[arg-type]


def test_the_error_names_rank_kernel_and_both_digests() -> None:
    error = RankDisagreement([(3, "triton.rms_norm", "77aa", "c718")], [(1, "OSError: gone")])
    assert str(error) == (
        "the ranks do not agree:\n"
        "  rank 3: triton.rms_norm has the source 77aa; on rank 0 it has c718\n"
        "  rank 1: OSError: gone\n"
        "Nothing was agreed on, on any rank: install the same packages on all of them"
    )
