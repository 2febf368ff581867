from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from portakernel.words.arch import ArchSpace
from portakernel.words.dtypes import DTYPES, SCALE_FORMATS

BACKENDS = Path(__file__).parents[2] / "backends/portakernel_backends"
NAMES = ("nvidia", "amd", "intel", "apple", "cpu")
KEYS = {
    "schema_version",
    "plugin_api",
    "backend",
    "vendor",
    "summary",
    "torch_device",
    "attach",
    "open_ended",
    "lines",
    "families",
    "archs",
}
ARCH_KEYS = {"name", "warp_size", "shared_memory_kib", "dtypes", "formats", "features", "source"}
PLAIN = ("tensor", "row", "block_1x128", "block_128x128")  # software scales them, around a multiplication of fp8
FNUZ = {"float8_e4m3fnuz", "float8_e5m2fnuz"}
FP8 = {"float8_e4m3fn", "float8_e5m2"} | FNUZ


def read(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load((BACKENDS / name / "backend.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


MANIFESTS = {name: read(name) for name in NAMES}
ARCHS = [(name, arch) for name in NAMES for arch in MANIFESTS[name]["archs"]]


def facts(name: str, arch: str) -> dict[str, Any]:
    found = MANIFESTS[name]["archs"][arch]
    assert isinstance(found, dict)
    return found


def archs_with(name: str, kind: str, fact: str, how: str = "native") -> set[str]:
    return {arch for arch, found in MANIFESTS[name]["archs"].items() if fact in found[kind][how]}


def archs_having(name: str, feature: str) -> set[str]:
    return {arch for arch, found in MANIFESTS[name]["archs"].items() if feature in found["features"]}


def how(name: str, arch: str, fact: str) -> str:
    """``native``, ``emulated`` or ``neither``, for a dtype or a format."""
    found = facts(name, arch)["dtypes" if fact in DTYPES else "formats"]
    return next((how for how in ("native", "emulated") if fact in found[how]), "neither")


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_has_the_declared_keys_and_points_its_editor_at_the_schema(name: str) -> None:
    first = (BACKENDS / name / "backend.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=../../../portakernel/schema/backend.schema.json"
    assert set(MANIFESTS[name]) == KEYS
    assert MANIFESTS[name]["backend"] == MANIFESTS[name]["vendor"] == name
    assert MANIFESTS[name]["schema_version"] == 1
    assert MANIFESTS[name]["attach"] is False


@pytest.mark.parametrize("name", NAMES)
def test_lines_and_families_name_described_archs_and_leave_none_out(name: str) -> None:
    manifest = MANIFESTS[name]
    in_lines = [arch for line in manifest["lines"] for arch in line]
    in_families = [arch for members in manifest["families"].values() for arch in members]
    assert {*in_lines, *in_families} == set(manifest["archs"])
    assert len(in_lines) == len(set(in_lines))


@pytest.mark.parametrize(("name", "arch"), ARCHS)
def test_an_arch_is_described_whole_and_names_its_source(name: str, arch: str) -> None:
    found = facts(name, arch)
    assert set(found) - {"products"} == ARCH_KEYS
    assert found["name"]
    assert len(found["source"]) > 40
    assert len(found["features"]) == len(set(found["features"])) > 0
    if name == "cpu":
        assert found["warp_size"] is None
        assert found["shared_memory_kib"] is None
    else:
        assert found["warp_size"] in {8, 16, 32, 64}
        assert found["shared_memory_kib"] >= 32


@pytest.mark.parametrize(("name", "arch"), ARCHS)
def test_dtypes_and_formats_are_known_and_never_both_native_and_emulated(name: str, arch: str) -> None:
    found = facts(name, arch)
    for kind, known in (("dtypes", set(DTYPES)), ("formats", set(SCALE_FORMATS))):
        native, emulated = found[kind]["native"], found[kind]["emulated"]
        assert set(native) | set(emulated) <= known
        assert len(native) + len(emulated) == len({*native, *emulated})


@pytest.mark.parametrize(("name", "arch"), ARCHS)
def test_every_arch_computes_in_float32_and_integers_and_in_16_bits_at_least_by_widening(name: str, arch: str) -> None:
    for dtype in ("float32", "int64", "int32", "int16", "int8", "uint8", "bool"):
        assert how(name, arch, dtype) == "native"
    for dtype in ("float16", "bfloat16"):
        assert how(name, arch, dtype) != "neither"


@pytest.mark.parametrize(("name", "arch"), ARCHS)
def test_plain_formats_go_as_far_as_fp8_does(name: str, arch: str) -> None:
    if "native" in {how(name, arch, "float8_e4m3fn"), how(name, arch, "float8_e4m3fnuz")}:
        expected = "native"
    else:
        expected = "emulated" if any(how(name, arch, fp8) == "emulated" for fp8 in FP8) else "neither"
    assert {how(name, arch, each) for each in PLAIN} == {expected}


@pytest.mark.parametrize(("name", "arch"), ARCHS)
def test_formats_of_scaled_blocks_go_no_further_than_their_dtypes(name: str, arch: str) -> None:
    scale, e4m3, e5m2, e2m1 = (
        how(name, arch, dtype) for dtype in ("float8_e8m0fnu", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2")
    )
    formats = {each: how(name, arch, each) for each in ("mxfp8", "mxfp4", "nvfp4")}
    assert (formats["mxfp8"] == "native") == (scale == e4m3 == "native")
    assert (formats["mxfp4"] == "native") == (scale == e2m1 == "native")
    if formats["nvfp4"] == "native":
        assert e4m3 == e2m1 == "native"
    if formats["mxfp8"] == "emulated":
        # whose elements are one of the two; below sm_89 Triton widens E5M2 alone
        assert scale != "neither"
        assert {e4m3, e5m2} != {"neither"}
    if formats["mxfp4"] == "emulated":
        assert "neither" not in {scale, e2m1}
    if formats["nvfp4"] == "emulated":
        assert "neither" not in {e4m3, e2m1}


@pytest.mark.parametrize(
    ("name", "arch", "fact", "expected"),
    [
        ("nvidia", "sm_75", "float8_e5m2", "emulated"),
        ("nvidia", "sm_80", "float8_e5m2", "emulated"),
        ("nvidia", "sm_80", "float8_e4m3fn", "neither"),
        ("nvidia", "sm_80", "mxfp4", "emulated"),
        ("nvidia", "sm_80", "nvfp4", "neither"),
        ("nvidia", "sm_89", "float8_e4m3fn", "native"),
        ("nvidia", "sm_90", "row", "native"),
        ("nvidia", "sm_90", "mxfp8", "emulated"),
        ("nvidia", "sm_90", "nvfp4", "emulated"),
        ("nvidia", "sm_100", "nvfp4", "native"),
        ("nvidia", "sm_120", "mxfp4", "native"),
        ("amd", "gfx906", "float8_e5m2", "emulated"),
        ("amd", "gfx906", "mxfp8", "neither"),
        ("amd", "gfx942", "float8_e4m3fn", "emulated"),
        ("amd", "gfx942", "float8_e4m3fnuz", "native"),
        ("amd", "gfx942", "mxfp4", "emulated"),
        ("amd", "gfx950", "mxfp8", "native"),
        ("amd", "gfx950", "nvfp4", "emulated"),
        ("amd", "gfx1030", "float8_e4m3fn", "neither"),
        ("amd", "gfx1030", "row", "neither"),
        ("amd", "gfx1250", "nvfp4", "native"),
        ("intel", "dg2", "float64", "neither"),
        ("intel", "mtl", "bfloat16", "emulated"),
        ("intel", "pvc", "float8_e4m3fn", "emulated"),
        ("intel", "bmg", "mxfp4", "emulated"),
        ("intel", "cri", "mxfp8", "native"),
        ("intel", "cri", "nvfp4", "emulated"),
        ("apple", "m2", "bfloat16", "emulated"),
        ("apple", "m3", "bfloat16", "native"),
        ("apple", "m4", "float8_e4m3fn", "emulated"),
        ("apple", "m5", "float8_e4m3fn", "native"),
        ("apple", "m5", "mxfp8", "emulated"),
        ("cpu", "x86_64", "float8_e4m3fn", "emulated"),
    ],
)
def test_what_an_arch_does_with_a_dtype_or_a_format(name: str, arch: str, fact: str, expected: str) -> None:
    assert how(name, arch, fact) == expected


def test_nvidia_facts_by_dtype_are_those_of_the_programming_guide() -> None:
    everything = set(MANIFESTS["nvidia"]["archs"])
    blackwell = {"sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}
    assert archs_with("nvidia", "dtypes", "float16") == everything
    assert archs_with("nvidia", "dtypes", "bfloat16") == everything - {"sm_70", "sm_72", "sm_75"}
    for fp8 in ("float8_e4m3fn", "float8_e5m2"):
        assert archs_with("nvidia", "dtypes", fp8) == {"sm_89", "sm_90"} | blackwell
    assert archs_with("nvidia", "dtypes", "float8_e4m3fn", "emulated") == set()
    assert archs_with("nvidia", "dtypes", "float8_e5m2", "emulated") == everything - {"sm_89", "sm_90"} - blackwell
    for narrow in ("mxfp8", "mxfp4", "nvfp4"):
        assert archs_with("nvidia", "formats", narrow) == blackwell


def test_fnuz_is_amds_and_torchs_on_the_cpu() -> None:
    for name in ("nvidia", "intel", "apple"):
        for arch in MANIFESTS[name]["archs"]:
            assert {how(name, arch, fnuz) for fnuz in FNUZ} == {"neither"}


def test_nvidia_matrix_instructions_are_not_inherited() -> None:
    from_hopper_on = {"sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}
    assert archs_having("nvidia", "wgmma") == {"sm_90"}
    assert archs_having("nvidia", "tcgen05") == {"sm_100", "sm_103", "sm_110"}
    assert archs_having("nvidia", "block_scaled_mma") == {"sm_120", "sm_121"}
    assert archs_having("nvidia", "tma") == archs_having("nvidia", "cluster") == from_hopper_on
    assert archs_having("nvidia", "cp_async") == set(MANIFESTS["nvidia"]["archs"]) - {"sm_70", "sm_72", "sm_75"}


@pytest.mark.parametrize(
    ("name", "arch", "warp_size", "shared_memory_kib"),
    [
        ("nvidia", "sm_75", 32, 64),
        ("nvidia", "sm_80", 32, 163),
        ("nvidia", "sm_86", 32, 99),
        ("nvidia", "sm_90", 32, 227),
        ("nvidia", "sm_100", 32, 227),
        ("nvidia", "sm_120", 32, 99),
        ("amd", "gfx90a", 64, 64),
        ("amd", "gfx942", 64, 64),
        ("amd", "gfx950", 64, 160),
        ("amd", "gfx1100", 32, 64),
        ("amd", "gfx1250", 32, 320),
        ("intel", "dg2", 8, 64),
        ("intel", "pvc", 16, 128),
        ("intel", "bmg", 16, 128),
        ("intel", "arl_h", 8, 64),
        ("intel", "cri", 16, 384),
        ("apple", "m1", 32, 32),
        ("apple", "m5", 32, 32),
        ("cpu", "x86_64", None, None),
    ],
)
def test_warp_size_and_shared_memory(
    name: str, arch: str, warp_size: int | None, shared_memory_kib: int | None
) -> None:
    assert facts(name, arch)["warp_size"] == warp_size
    assert facts(name, arch)["shared_memory_kib"] == shared_memory_kib


def test_fp8_is_fnuz_on_gfx942_alone_and_ocp_on_what_came_later() -> None:
    assert archs_with("amd", "dtypes", "float8_e4m3fnuz") == {"gfx942"}
    assert archs_with("amd", "dtypes", "float8_e4m3fn") == {"gfx950", "gfx1200", "gfx1201", "gfx1250"}
    assert {"float8_e4m3fn", "float8_e5m2"} <= set(facts("amd", "gfx942")["dtypes"]["emulated"])
    assert {"float8_e4m3fnuz", "float8_e5m2fnuz"} <= set(facts("amd", "gfx950")["dtypes"]["emulated"])


def test_amd_scales_in_the_matrix_unit_from_cdna4_on_and_never_on_rdna() -> None:
    assert archs_with("amd", "formats", "mxfp4") == {"gfx950", "gfx1250"}
    assert archs_with("amd", "formats", "nvfp4") == {"gfx1250"}


def test_amd_has_mfma_or_wmma_and_rdna2_neither() -> None:
    for arch, found in MANIFESTS["amd"]["archs"].items():
        units = {"mfma", "wmma"} & set(found["features"])
        if arch in {"gfx908", "gfx90a", "gfx942", "gfx950"}:
            assert units == {"mfma"}
        elif arch.startswith("gfx103") or arch == "gfx906":
            assert units == set()
            assert "bfloat16" in found["dtypes"]["emulated"]
        else:
            assert units == {"wmma"}


def test_intel_has_xmx_in_all_but_the_tiles_of_meteor_lake_and_of_most_of_arrow_lake() -> None:
    everything, narrow = set(MANIFESTS["intel"]["archs"]), {"nvlp", "cri"}
    assert archs_having("intel", "xmx") == everything - {"mtl", "arl"} == archs_with("intel", "dtypes", "bfloat16")
    assert archs_having("intel", "tf32") == archs_having("intel", "block_2d_io")
    assert archs_having("intel", "block_2d_io") == everything - {"dg2", "mtl", "arl", "arl_h"}
    assert archs_having("intel", "bdpas") == archs_with("intel", "dtypes", "float8_e4m3fn") == narrow
    assert archs_with("intel", "formats", "nvfp4", "emulated") == everything
    assert archs_with("intel", "dtypes", "float64") == everything - {"dg2"}


def test_apple_has_no_float64_and_multiplies_fp8_in_m5_alone() -> None:
    everything = set(MANIFESTS["apple"]["archs"])
    assert {how("apple", arch, "float64") for arch in everything} == {"neither"}
    assert archs_having("apple", "simdgroup_matrix") == everything
    assert archs_having("apple", "neural_accelerator") == archs_with("apple", "dtypes", "float8_e4m3fn") == {"m5"}
    assert archs_with("apple", "dtypes", "bfloat16", "emulated") == {"m1", "m2"}


def test_the_cpu_is_open_ended_and_claims_only_the_baseline() -> None:
    assert MANIFESTS["cpu"]["open_ended"] is True
    for arch in ("x86_64", "aarch64"):
        assert {"float16", "bfloat16"} <= set(facts("cpu", arch)["dtypes"]["emulated"])


def space(name: str) -> ArchSpace:
    manifest = MANIFESTS[name]
    return ArchSpace(
        vendor=name,
        lines=tuple(tuple(line) for line in manifest["lines"]),
        families={family: tuple(members) for family, members in manifest["families"].items()},
        open_ended=manifest["open_ended"],
    )


@pytest.mark.parametrize(
    ("name", "arch", "family"),
    [
        ("nvidia", "sm_87", "ampere"),
        ("nvidia", "sm_100", "blackwell"),
        ("nvidia", "sm_121", "blackwell"),
        ("amd", "gfx906", "gcn5"),
        ("amd", "gfx1103", "rdna3"),
        ("amd", "gfx1151", "rdna3.5"),
        ("amd", "gfx1250", "cdna5"),
        ("intel", "bmg", "xe2"),
        ("intel", "arl_h", "xe-lpg"),
        ("intel", "ptl", "xe3"),
        ("apple", "m4", "apple9"),
        ("apple", "a18", "apple9"),
    ],
)
def test_an_arch_belongs_to_its_vendors_family(name: str, arch: str, family: str) -> None:
    assert space(name).family(arch) == family


@pytest.mark.parametrize(
    ("name", "arch", "newer"),
    [
        ("nvidia", "sm_130", True),
        ("nvidia", "sm_88", False),
        ("amd", "gfx1251", True),
        ("amd", "gfx1202", True),
        ("amd", "gfx1010", False),
        ("intel", "xyz", False),
        ("apple", "m6", True),
        ("apple", "a19", True),
    ],
)
def test_an_unlisted_arch_is_newer_only_past_the_end_of_its_line(name: str, arch: str, newer: bool) -> None:
    assert space(name).is_newer(arch) is newer


@pytest.mark.parametrize(
    ("name", "targets", "inside", "outside"),
    [
        ("intel", ["xe-hpc", "xe2"], {"pvc", "bmg", "lnl"}, {"dg2", "mtl", "ptl"}),
        ("intel", ["pvc+"], {"pvc", "bmg", "ptl", "cri"}, {"dg2", "mtl", "arl_h"}),
        ("apple", ["m3+"], {"m3", "m4", "m5", "m6"}, {"m1", "m2", "a18"}),
        ("apple", ["apple9"], {"m3", "m4", "a18"}, {"m2", "m5"}),
    ],
)
def test_a_plugin_names_archs_and_families(name: str, targets: list[str], inside: set[str], outside: set[str]) -> None:
    parsed = space(name).parse(targets)
    assert {arch for arch in inside | outside if space(name).membership(parsed, arch).inside} == inside
