from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from portakernel.arch import ArchSpace
from portakernel.dtypes import DTYPES, SCALE_FORMATS

BACKENDS = Path(__file__).parents[2] / "backends/portakernel_backends"
NAMES = ("nvidia", "amd", "cpu")
KEYS = {
    "schema_version",
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


def archs_with(name: str, kind: str, fact: str) -> set[str]:
    return {arch for arch, found in MANIFESTS[name]["archs"].items() if fact in found[kind]["native"]}


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
    assert set(found) == ARCH_KEYS
    assert found["name"]
    assert len(found["source"]) > 40
    assert len(found["features"]) == len(set(found["features"])) > 0


@pytest.mark.parametrize(("name", "arch"), ARCHS)
def test_dtypes_and_formats_are_known_and_either_native_or_emulated(name: str, arch: str) -> None:
    found = facts(name, arch)
    for kind, known in (("dtypes", set(DTYPES)), ("formats", set(SCALE_FORMATS))):
        native, emulated = found[kind]["native"], found[kind]["emulated"]
        assert set(native) | set(emulated) <= known
        assert len(native) + len(emulated) == len({*native, *emulated})
    assert {*found["formats"]["native"], *found["formats"]["emulated"]} == set(SCALE_FORMATS)


@pytest.mark.parametrize(("name", "arch"), ARCHS)
def test_formats_are_native_where_the_dtypes_that_they_scale_are(name: str, arch: str) -> None:
    dtypes, formats = facts(name, arch)["dtypes"]["native"], facts(name, arch)["formats"]["native"]
    multiplies_fp8 = bool({"float8_e4m3fn", "float8_e4m3fnuz"} & set(dtypes))
    for each in ("tensor", "row", "block_1x128", "block_128x128"):
        assert (each in formats) == multiplies_fp8
    assert ("mxfp8" in formats) == ("float8_e8m0fnu" in dtypes)
    assert ("mxfp4" in formats) == ("float4_e2m1fn_x2" in dtypes)
    if "nvfp4" in formats:
        assert "float4_e2m1fn_x2" in dtypes
        assert "float8_e4m3fn" in dtypes


def test_nvidia_facts_by_dtype_are_those_of_the_programming_guide() -> None:
    everything = set(MANIFESTS["nvidia"]["archs"])
    blackwell = {"sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}
    assert archs_with("nvidia", "dtypes", "float16") == everything
    assert archs_with("nvidia", "dtypes", "bfloat16") == everything - {"sm_70", "sm_72", "sm_75"}
    for fp8 in ("float8_e4m3fn", "float8_e5m2"):
        assert archs_with("nvidia", "dtypes", fp8) == {"sm_89", "sm_90"} | blackwell
    for narrow in ("mxfp8", "mxfp4", "nvfp4"):
        assert archs_with("nvidia", "formats", narrow) == blackwell


def test_nvidia_does_not_serve_fnuz() -> None:
    for arch in MANIFESTS["nvidia"]["archs"]:
        dtypes = facts("nvidia", arch)["dtypes"]
        assert not {"float8_e4m3fnuz", "float8_e5m2fnuz"} & {*dtypes["native"], *dtypes["emulated"]}


def test_nvidia_matrix_instructions_are_not_inherited() -> None:
    def having(feature: str) -> set[str]:
        return {arch for arch, found in MANIFESTS["nvidia"]["archs"].items() if feature in found["features"]}

    assert having("wgmma") == {"sm_90"}
    assert having("tcgen05") == {"sm_100", "sm_103", "sm_110"}
    assert having("block_scaled_mma") == {"sm_120", "sm_121"}
    assert having("tma") == having("cluster") == {"sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}
    assert having("cp_async") == set(MANIFESTS["nvidia"]["archs"]) - {"sm_70", "sm_72", "sm_75"}


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
    ],
)
def test_an_unlisted_arch_is_newer_only_past_the_end_of_its_line(name: str, arch: str, newer: bool) -> None:
    assert space(name).is_newer(arch) is newer
