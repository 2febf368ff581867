"""The support matrix: claims of manifests against the facts of backends."""

from __future__ import annotations

import pytest

from portakernel.errors import UnknownNameError
from portakernel.matrix.table import Marks, markdown, support_matrix

FACTS = {
    "old": {"dtypes": {"native": ["float32"], "emulated": ["float16"]}},
    "mid": {"dtypes": {"native": ["float32", "float16", "bfloat16"]}},
    "new": {"dtypes": {"native": ["float32", "float16", "bfloat16"]}},
}


@pytest.fixture
def vendor(world):
    """Vendor ``zeta``: archs old, mid, new; mid and new are family ``gen2``, which is part of family ``all``."""
    archs = {arch: {"name": arch, "source": "invented", **facts} for arch, facts in FACTS.items()}
    families = {"all": ["mid", "new", "old"], "gen2": ["mid", "new"]}
    world.backend("zeta", lines=[["old", "mid", "new"]], families=families, archs=archs)
    return world


def add_of(world, **filters):
    (support,) = support_matrix(world.registry(), op="add", **filters)
    return support


def places(support, kernel):
    """Each place of ``kernel``: its archs, and the dtypes by mark."""
    rows = [(place.archs, place.servings[kernel].dtypes) for place in support.places if kernel in place.servings]
    return [(archs, (marks.native, marks.emulated, marks.absent) if marks else None) for archs, marks in rows]


def test_claimed_dtypes_are_native_emulated_or_absent_on_each_arch(vendor):
    vendor.plugin("p", {"targets": {"zeta": "any"}})
    everything = ("float32", "float16", "bfloat16")
    assert places(add_of(vendor), "p.add") == [
        (("old",), (("float32",), ("float16",), ("bfloat16",))),
        (("mid", "new"), (everything, (), ())),
    ]


def test_archs_of_the_smallest_family_stand_together_while_their_servings_are_equal(vendor):
    vendor.plugin("p", {"targets": {"zeta": "mid+"}}, {"name": "newest", "targets": {"zeta": "new"}})
    support = add_of(vendor, plugin="p")
    assert [(place.family, place.archs, sorted(place.servings)) for place in support.places] == [
        ("gen2", ("mid",), ["p.add"]),
        ("gen2", ("new",), ["p.add", "p.newest"]),
    ]


def test_a_kernels_variants_count_where_they_reach(vendor):
    variants = [
        {"targets": {"zeta": "old"}, "dtypes": {"x": ["float32"], "y": ["x"]}},
        {"targets": {"zeta": "mid+"}, "dtypes": {"x": ["float16"], "y": ["x"]}},
    ]
    vendor.plugin("p", {"variants": variants})
    assert places(add_of(vendor), "p.add") == [
        (("old",), (("float32",), (), ())),
        (("mid", "new"), (("float16",), (), ())),
    ]


def test_formats_are_marked_too():
    class Support:
        native = ("row",)
        emulated = ("mxfp8",)

    assert Marks.of(["mxfp8", "row", "nvfp4", "row"], Support) == Marks(("row",), ("mxfp8",), ("nvfp4",))


def test_a_vendor_whose_archs_cannot_be_listed_has_one_place_without_marks(world):
    world.backend("open", open_ended=True)
    world.plugin("p", {"targets": {"open": "any"}})
    support = add_of(world, plugin="p")
    assert [(place.vendor, place.archs) for place in support.places] == [("open", ())]
    assert support.places[0].servings["p.add"].dtypes is None
    assert markdown([support]).endswith("| open | any | yes |\n")


def test_a_vendors_matrix_leaves_out_kernels_that_do_not_reach_it(vendor):
    vendor.plugin("p", {"targets": {"zeta": "any"}}, {"name": "elsewhere"})
    assert [kernel.name for kernel in add_of(vendor, vendor="zeta").kernels] == ["p.add", "reference.add"]


def test_kernels_are_ordered_by_priority_and_the_reference_is_last(vendor):
    rules = [{"when": {"M": {"max": 4}}, "priority": 30}, {"priority": 5}]
    vendor.plugin("p", {"priority": 10}, {"name": "tall", "priority": rules})
    support = add_of(vendor)
    assert [kernel.name for kernel in support.kernels] == ["p.tall", "p.add", "reference.add"]
    assert "| 30 where M <= 4, 5 |" in markdown([support])


def test_marks_are_written_in_words(vendor):
    vendor.plugin("p", {"targets": {"zeta": "any"}, "dtypes": {"x": ["float16"], "y": ["x"]}})
    vendor.plugin("q", {"targets": {"zeta": "any"}})
    page = markdown([add_of(vendor, vendor="zeta")])
    assert "| zeta | all: old | emulated | native; emulated: float16; absent: bfloat16 |" in page
    assert "| zeta | gen2: mid, new | native | native |" in page


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"op": "ad"}, "unknown op 'ad'; did you mean 'add'?"),
        ({"vendor": "acm"}, "unknown vendor 'acm'; did you mean 'acme'?"),
        ({"plugin": "q"}, "unknown plugin 'q'; known: p, reference"),
    ],
)
def test_unknown_names_are_refused(world, filters, message):
    world.plugin("p")
    with pytest.raises(UnknownNameError) as caught:
        support_matrix(world.registry(), **filters)
    assert str(caught.value) == message
