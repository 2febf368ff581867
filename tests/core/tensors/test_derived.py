"""What is made of a weight once: how long it is kept, what ends it, and where it is refused."""

from __future__ import annotations

import gc
from itertools import count

import pytest
import torch

from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.tensors import derived
from portakernel.tensors.derived import Derived


@pytest.fixture
def packs() -> Derived[int]:
    return Derived("a packed weight")


@pytest.fixture
def made():
    """A number for each time that something is made."""
    return count(1).__next__


def test_it_is_made_once_for_a_weight_and_for_views_that_are_made_anew(packs, made):
    weight = torch.zeros(4, 6)
    assert [packs.of((weight, None), "how", made) for _ in range(3)] == [1, 1, 1]
    assert [packs.of((weight.t(),), "how", made) for _ in range(2)] == [2, 2]
    assert packs.of((weight[1:],), "how", made) == 3
    assert packs.of((weight, None), "otherwise", made) == 4
    assert packs.of((weight, None), "how", made) == 1
    assert len(packs) == 4


def test_a_write_makes_it_anew_in_the_place_of_the_old_one(packs, made):
    weight, scales = torch.zeros(4), torch.ones(4)
    assert packs.of((weight, scales), "", made) == 1
    scales[2:].mul_(2)  # through a view
    assert packs.of((weight, scales), "", made) == 2
    weight.zero_()
    assert [packs.of((weight, scales), "", made) for _ in range(2)] == [3, 3]
    assert len(packs) == 1


def test_it_goes_with_the_memory_of_the_weight_and_not_before(packs, made):
    weight, other = torch.zeros(4, 6), torch.zeros(4, 6)
    assert (packs.of((weight,), "", made), packs.of((other,), "", made)) == (1, 2)
    view = weight[0]
    del weight
    gc.collect()
    assert len(packs) == 2
    del view
    gc.collect()
    assert len(packs) == 1
    assert packs.of((other,), "", made) == 2


def test_what_could_not_be_made_is_not_kept(packs, made):
    weight = torch.zeros(4)

    def fails() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        packs.of((weight,), "", fails)
    assert len(packs) == 0
    assert packs.of((weight,), "", made) == 1


def test_a_weight_of_inference_mode_is_refused_since_its_writes_are_not_counted(packs, made):
    with torch.inference_mode():
        weight = torch.zeros(4)
    ordinary = torch.zeros(4)
    with pytest.raises(CannotRun, match=r"a packed weight for each weight.* make it outside of torch.inference_mode"):
        packs.of((ordinary, weight), "", made)
    with torch.inference_mode():  # that calls are made there does no harm
        assert packs.of((ordinary,), "", made) == 1


def test_nothing_is_made_while_a_graph_is_being_captured(packs, made, monkeypatch):
    weight, known = torch.zeros(4), torch.zeros(4)
    assert packs.of((known,), "", made) == 1
    monkeypatch.setattr(derived, "is_capturing", lambda: True)
    assert packs.of((known,), "", made) == 1
    with pytest.raises(CannotRun, match="call once before capturing a graph") as refused:
        packs.of((weight,), "", made)
    assert refused.value.rejection.code is ReasonCode.NOT_CAPTURABLE
