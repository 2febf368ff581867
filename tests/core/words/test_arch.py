"""Selectors of architectures and what is inside them."""

from __future__ import annotations

import pytest

from portakernel.errors import ArgumentValueError, UnknownNameError
from portakernel.words.arch import ArchSpace, Membership, normalise

NVIDIA = ArchSpace(
    "nvidia",
    (("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"),),
    {"ampere": ("sm_80", "sm_86"), "hopper": ("sm_90",)},
)
AMD = ArchSpace(
    "amd",
    (("gfx908", "gfx90a", "gfx942", "gfx950"), ("gfx1100", "gfx1101", "gfx1150", "gfx1200", "gfx1201")),
    {"gcn5": ("gfx906",), "cdna3": ("gfx942",), "rdna4": ("gfx1200", "gfx1201")},
)
ANY = ArchSpace("cpu", (("x86_64",), ("aarch64",)), {}, open_ended=True)
SPACES = {"nvidia": NVIDIA, "amd": AMD, "cpu": ANY}


def inside(space: ArchSpace, terms: str, *, exclude: str = "", prebuilt: bool = False) -> list[str]:
    """The listed archs that the selector admits."""
    selector = space.parse(terms.split(), exclude.split())
    return [arch for arch in space.archs if space.membership(selector, arch, prebuilt=prebuilt).inside]


@pytest.mark.parametrize("prebuilt", [False, True])
@pytest.mark.parametrize(
    ("vendor", "terms", "expected"),
    [
        ("nvidia", "sm_90", "sm_90"),
        ("nvidia", "sm_90+", "sm_90 sm_100 sm_103 sm_120 sm_121"),
        ("nvidia", "sm_121+", "sm_121"),
        ("nvidia", "sm_80..sm_90", "sm_80 sm_86 sm_89 sm_90"),
        ("nvidia", "sm_90..sm_90", "sm_90"),
        ("nvidia", "ampere", "sm_80 sm_86"),
        ("nvidia", "ampere sm_121", "sm_80 sm_86 sm_121"),
        ("nvidia", "any", "sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120 sm_121"),
        ("nvidia", "sm_90a", "sm_90"),
        ("nvidia", "sm_100f", "sm_100 sm_103"),
        ("nvidia", "sm_103f", "sm_103"),
        ("nvidia", "sm_120f", "sm_120 sm_121"),
        ("amd", "gfx908+", "gfx908 gfx90a gfx942 gfx950"),
        ("amd", "gfx90a..gfx942", "gfx90a gfx942"),
        ("amd", "gfx1150+", "gfx1150 gfx1200 gfx1201"),
        ("amd", "cdna3 rdna4", "gfx942 gfx1200 gfx1201"),
        ("amd", "gfx942:sramecc+:xnack-", "gfx942"),
        ("amd", "gcn5", "gfx906"),
        ("amd", "gfx906", "gfx906"),
        ("amd", "gfx906+", "gfx906"),
    ],
)
def test_a_selector_admits_exactly(vendor, terms, expected, prebuilt):
    assert inside(SPACES[vendor], terms, prebuilt=prebuilt) == expected.split()


@pytest.mark.parametrize("prebuilt", [False, True])
@pytest.mark.parametrize(
    ("terms", "exclude", "expected"),
    [
        ("sm_90+", "sm_120", "sm_90 sm_100 sm_103 sm_121"),
        ("sm_80+", "sm_100+", "sm_80 sm_86 sm_89 sm_90"),
        ("any", "ampere sm_120f", "sm_75 sm_89 sm_90 sm_100 sm_103"),
        ("hopper", "hopper", ""),
    ],
)
def test_not_takes_away_from_what_is_included(terms, exclude, expected, prebuilt):
    assert inside(NVIDIA, terms, exclude=exclude, prebuilt=prebuilt) == expected.split()


@pytest.mark.parametrize(
    ("vendor", "terms", "arch"),
    [
        ("nvidia", "sm_80+", "sm_130"),
        ("nvidia", "sm_121+", "sm_130"),
        ("amd", "gfx90a+", "gfx951"),
        ("amd", "gfx1100+", "gfx1202"),
    ],
)
def test_an_arch_newer_than_the_list_is_inside_for_source_and_outside_for_prebuilt_kernels(vendor, terms, arch):
    space = SPACES[vendor]
    selector = space.parse([terms])
    assert space.membership(selector, arch) == Membership(
        True, f"{arch} is not among the listed {vendor} archs; taken as a later member of its line"
    )
    assert space.membership(selector, arch, prebuilt=True) == Membership(
        False, f"{arch} is newer than the listed archs, and a prebuilt kernel has no code for it"
    )


@pytest.mark.parametrize(
    ("vendor", "terms", "arch"),
    [
        ("nvidia", "sm_80..sm_90", "sm_130"),
        ("nvidia", "sm_90", "sm_130"),
        ("nvidia", "sm_90a", "sm_91"),
        ("nvidia", "sm_120f", "sm_130"),
        ("nvidia", "ampere", "sm_130"),
        ("amd", "gfx908+", "gfx1202"),
        ("amd", "gfx1100+", "gfx951"),
        ("amd", "gfx906+", "gfx1202"),
    ],
)
def test_an_arch_newer_than_the_list_is_outside_what_does_not_reach_it(vendor, terms, arch):
    space = SPACES[vendor]
    for prebuilt in (False, True):
        assert space.membership(space.parse([terms]), arch, prebuilt=prebuilt) == Membership(False)


def test_a_later_member_of_a_major_version_is_inside_its_family_suffix():
    assert NVIDIA.membership(NVIDIA.parse(["sm_120f"]), "sm_122").inside


@pytest.mark.parametrize("prebuilt", [False, True])
def test_what_is_excluded_stays_excluded_for_prebuilt_kernels_and_newer_archs(prebuilt):
    selector = NVIDIA.parse(["any"], ["sm_100+"])
    assert not NVIDIA.membership(selector, "sm_130", prebuilt=prebuilt).inside


def test_an_open_ended_vendor_takes_any_arch_without_a_note():
    assert ANY.membership(ANY.parse(["any"]), "riscv64") == Membership(True)
    assert ANY.membership(ANY.parse(["any"]), "riscv64", prebuilt=True) == Membership(True)
    assert ANY.membership(ANY.parse(["riscv64"]), "riscv64") == Membership(True)
    assert ANY.membership(ANY.parse(["x86_64"]), "riscv64") == Membership(False)
    assert ANY.membership(ANY.parse(["x86_64+"]), "riscv64") == Membership(False)


@pytest.mark.parametrize(
    ("arch", "plain"),
    [
        ("gfx942:sramecc+:xnack-", "gfx942"),
        ("gfx90a:xnack+", "gfx90a"),
        ("gfx942", "gfx942"),
        (" gfx942 ", "gfx942"),
        ("sm_90a", "sm_90"),
        ("sm_100f", "sm_100"),
        ("sm_90", "sm_90"),
        ("gfx90a", "gfx90a"),
        ("x86_64", "x86_64"),
    ],
)
def test_normalising_drops_run_time_flags_and_nvidias_suffixes_alone(arch, plain):
    assert normalise(arch) == plain
    assert normalise(plain) == plain


@pytest.mark.parametrize(
    ("vendor", "term", "message"),
    [
        ("nvidia", "sm90", "unknown nvidia arch 'sm90'; did you mean 'sm_90' or "),
        ("nvidia", "sm90+", "unknown nvidia arch 'sm90'; did you mean 'sm_90' or "),
        ("nvidia", "sm_88", "unknown nvidia arch 'sm_88'; did you mean "),
        ("nvidia", "sm_70", "unknown nvidia arch 'sm_70'; did you mean "),
        ("nvidia", "gfx942", "unknown nvidia arch 'gfx942'; known: ampere, hopper, sm_100, "),
        ("nvidia", "hoper", "unknown nvidia arch 'hoper'; did you mean 'hopper'?"),
        ("nvidia", "sm_90..sm_88", "unknown nvidia arch 'sm_88'; did you mean "),
        ("amd", "cdna9", "unknown amd arch 'cdna9'; did you mean 'cdna3' or 'rdna4'?"),
        ("amd", "gfx94", "unknown amd arch 'gfx94'; did you mean 'gfx942' or "),
    ],
)
def test_a_misspelt_arch_offers_the_nearest(vendor, term, message):
    with pytest.raises(UnknownNameError) as caught:
        SPACES[vendor].parse([term])
    assert str(caught.value).startswith(message)
    with pytest.raises(UnknownNameError) as caught:
        SPACES[vendor].parse(["any"], [term], where="here")
    assert str(caught.value).startswith(f"here: {message}")


@pytest.mark.parametrize(
    ("vendor", "term"),
    [("nvidia", "sm_90..sm_80"), ("amd", "gfx942..gfx1100"), ("amd", "gfx906..gfx942"), ("amd", "gfx1200..gfx1100")],
)
def test_a_range_is_of_one_line_and_forward(vendor, term):
    with pytest.raises(ArgumentValueError) as caught:
        SPACES[vendor].parse([term], where="here")
    assert str(caught.value) == f"here: range {term!r} is not within one line of {vendor}'s archs, oldest first"


@pytest.mark.parametrize("term", ["sm_90a+", "sm_100f+", "sm_90a..sm_100a"])
def test_a_suffix_that_says_this_one_alone_is_not_open_upwards(term):
    """Accepted, it would admit nothing at all, and nobody would be told."""
    with pytest.raises((UnknownNameError, ArgumentValueError)):
        NVIDIA.parse([term])


@pytest.mark.parametrize(
    ("vendor", "arch", "newer"),
    [
        ("nvidia", "sm_130", True),
        ("nvidia", "sm_122", True),
        ("nvidia", "sm_88", False),
        ("nvidia", "sm_121", False),
        ("nvidia", "sm_x", False),
        ("nvidia", "gfx942", False),
        ("amd", "gfx951", True),
        ("amd", "gfx90c", False),
        ("amd", "gfx1202", True),
        ("amd", "gfx1151", False),
    ],
)
def test_newer_is_after_the_end_of_its_own_line(vendor, arch, newer):
    assert SPACES[vendor].is_newer(arch) is newer


def test_check_takes_listed_newer_and_open_ended_archs_and_no_family():
    assert NVIDIA.check("sm_90") == "sm_90"
    assert NVIDIA.check("sm_130") == "sm_130"
    assert ANY.check("anything") == "anything"
    with pytest.raises(ArgumentValueError, match=r"^'hopper' is a family of nvidia's archs; name one of them: sm_90$"):
        NVIDIA.check("hopper")


def test_a_family_is_found_by_its_member():
    assert (AMD.family("gfx942"), AMD.family("gfx906"), AMD.family("gfx950")) == ("cdna3", "gcn5", None)


def test_a_selector_reads_as_it_is_written():
    assert str(NVIDIA.parse(["sm_80+", "sm_75"])) == "sm_80+, sm_75"
    assert str(NVIDIA.parse(["sm_80+"], ["sm_86", "sm_89"])) == "sm_80+ except sm_86, sm_89"
