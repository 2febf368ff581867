from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import portakernel_backends.intel
from portakernel.tensors.torch_build import TorchBuild
from portakernel.words.target import Device, Target
from portakernel_backends.intel import products
from portakernel_backends.intel.affinity import visible_tiles
from portakernel_backends.intel.probe import find
from portakernel_backends.intel.products import product

GIB = 1 << 30
A770, B580, MAX_1550, UHD_770, ARC_MTL = 0x56A0, 0xE20B, 0x0BD5, 0x4680, 0x7D55
NOT_TAKEN = (
    "torch takes integrated GPUs only where no discrete one is visible: set ZE_AFFINITY_MASK to this one's number"
)
SELECTED = "its number is presumed, because ONEAPI_DEVICE_SELECTOR is set and not read: use ZE_AFFINITY_MASK instead"


def xpu_build() -> TorchBuild:
    return TorchBuild("2.13.0+xpu", xpu="20260100")


class Tree:
    """A /sys and a /dev/dri with the GPUs that a test adds."""

    def __init__(self, root: Path) -> None:
        self.sysfs = root / "sys"
        self.dri = root / "dri"
        self.dri.mkdir()

    def write(self, path: str, text: str) -> None:
        file = self.sysfs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def gpu(
        self,
        device_id: int,
        slot: str,
        *,
        driver: str = "xe",
        vendor: str = "0x8086",
        files: Mapping[str, int] | None = None,
    ) -> Path:
        minor = f"renderD{128 + len(list(self.dri.iterdir()))}"
        device = f"class/drm/{minor}/device"
        self.write(f"{device}/vendor", f"{vendor}\n")
        self.write(f"{device}/device", f"0x{device_id:04x}\n")
        self.write(f"{device}/uevent", f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_SLOT_NAME=0000:{slot}\n")
        for name, number in (files or {}).items():
            self.write(f"{device}/{name}", f"{number}\n")
        (self.dri / minor).touch()
        return self.dri / minor

    def find(
        self,
        environ: Mapping[str, str] | None = None,
        build: Callable[[], TorchBuild | None] = xpu_build,
    ) -> list[Device]:
        return find(sysfs=self.sysfs, dri=self.dri, environ=environ or {}, build=build)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def two(tree: Tree) -> Tree:
    tree.gpu(B580, "07:00.0")
    tree.gpu(A770, "03:00.0", driver="i915")
    return tree


@pytest.fixture
def tiled(tree: Tree) -> Tree:
    """Two Data Center GPU Max 1550 of two tiles each."""
    for slot in ("29:00.0", "3a:00.0"):
        tree.gpu(
            MAX_1550,
            slot,
            driver="i915",
            files={"drm/card0/gt/gt0/id": 0, "drm/card0/gt/gt1/id": 1, "drm/card0/lmem_total_bytes": 128 * GIB},
        )
    return tree


def numbered(devices: list[Device]) -> list[tuple[str, str | None]]:
    return [(device.target.arch, device.torch_device) for device in devices]


def test_a_gpu_is_described_whole(tree: Tree) -> None:
    tree.gpu(B580, "03:00.0", files={"tile0/physical_vram_size_bytes": 12 * GIB})
    tree.write("module/xe/version", "1.2.3\n")
    assert tree.find() == [
        Device(
            target=Target("intel", "bmg"),
            name="Intel Arc B580",
            torch_device="xpu:0",
            uuid=None,
            memory_bytes=12 * GIB,
            driver="xe 1.2.3",
        )
    ]


def test_a_driver_of_linux_itself_has_no_version_and_i915_tells_no_memory(tree: Tree) -> None:
    tree.gpu(A770, "03:00.0", driver="i915")
    [device] = tree.find()
    assert (device.driver, device.memory_bytes) == ("i915", None)


@pytest.mark.parametrize(
    ("device_id", "arch", "name"),
    [
        (0x56A0, "dg2", "Intel Arc A770"),
        (0x5693, "dg2", "Intel Arc A370M"),
        (0x56C1, "dg2", "Intel Data Center GPU Flex 140"),
        (0x0BDA, "pvc", "Intel Data Center GPU Max 1100"),
        (0x0B69, "pvc", "Intel Data Center GPU Max 1450"),
        (0x7D55, "mtl", "Intel Arc Graphics"),
        (0x7D45, "mtl", "Intel GPU 7d45 (mtl)"),
        (0x7D67, "arl", "Intel GPU 7d67 (arl)"),
        (0x7D41, "arl", "Intel GPU 7d41 (arl)"),
        (0x7D51, "arl_h", "Intel Arc Graphics"),
        (0x64A0, "lnl", "Intel Arc Graphics"),
        (0xE212, "bmg", "Intel Arc Pro B50"),
        (0xE223, "bmg", "Intel GPU e223 (bmg)"),
        (0xB080, "ptl", "Intel Arc B390"),
        (0xFD81, "wcl", "Intel GPU fd81 (wcl)"),
        (0xD741, "nvls", "Intel GPU d741 (nvls)"),
        (0xD751, "nvlp", "Intel GPU d751 (nvlp)"),
        (0x674C, "cri", "Intel GPU 674c (cri)"),
    ],
)
def test_a_device_id_names_the_arch(tree: Tree, device_id: int, arch: str, name: str) -> None:
    tree.gpu(device_id, "03:00.0")
    [device] = tree.find()
    assert device.target == Target("intel", arch)
    assert device.name == name
    assert device.note == ""


def test_blocks_of_device_ids_do_not_overlap_and_name_the_archs_that_the_manifest_describes() -> None:
    known = {device_id: found.arch for device_id in range(0x10000) if (found := product(device_id))}
    blocks = [block for _, blocks in products.ARCHS for block in blocks]
    blocks += [*products.XE_LP, products.XE_LP_DISCRETE]
    assert len(known) == sum(map(len, blocks))
    manifest = Path(portakernel_backends.intel.__file__).with_name("backend.yaml")
    described = yaml.safe_load(manifest.read_text(encoding="utf-8"))["archs"]
    assert set(known.values()) - {None} == set(described)
    assert {known[device_id] for device_id in products.NAMES} <= set(described)


def test_discrete_gpus_are_numbered_before_integrated_ones_and_each_kind_by_pci_address(tree: Tree) -> None:
    tree.gpu(ARC_MTL, "00:02.0")
    tree.gpu(B580, "a3:00.0")
    tree.gpu(A770, "1b:00.0")
    assert [(d.target.arch, d.torch_device, d.note) for d in tree.find()] == [
        ("dg2", "xpu:0", ""),
        ("bmg", "xpu:1", ""),
        ("mtl", None, NOT_TAKEN),
    ]


def test_an_integrated_gpu_alone_is_torchs_first(tree: Tree) -> None:
    tree.gpu(ARC_MTL, "00:02.0")
    assert numbered(tree.find()) == [("mtl", "xpu:0")]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [("dg2", "xpu:0"), ("bmg", "xpu:1"), ("mtl", None)]),
        ({"ZE_AFFINITY_MASK": "1"}, [("bmg", "xpu:0")]),
        ({"ZE_AFFINITY_MASK": "1,0"}, [("dg2", "xpu:0"), ("bmg", "xpu:1")]),
        ({"ZE_AFFINITY_MASK": "2"}, [("mtl", "xpu:0")]),
        ({"ZE_AFFINITY_MASK": "1,2"}, [("bmg", "xpu:0"), ("mtl", None)]),
        ({"ZE_AFFINITY_MASK": "7"}, []),
        ({"ZE_AFFINITY_MASK": ""}, [("dg2", "xpu:0"), ("bmg", "xpu:1"), ("mtl", None)]),
        ({"ZE_AFFINITY_MASK": "0", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}, [("mtl", "xpu:0")]),
        ({"ZE_AFFINITY_MASK": "0", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "0"}, [("dg2", "xpu:0")]),
    ],
)
def test_a_mask_counts_in_level_zeros_order(
    two: Tree, environ: Mapping[str, str], expected: list[tuple[str, str | None]]
) -> None:
    two.gpu(ARC_MTL, "00:02.0")
    assert numbered(two.find(environ)) == expected


def test_the_generation_before_has_a_number_and_is_not_reported(tree: Tree) -> None:
    tree.gpu(0x4905, "02:00.0", driver="i915")
    tree.gpu(A770, "03:00.0")
    tree.gpu(UHD_770, "00:02.0", driver="i915")
    assert numbered(tree.find()) == [("dg2", "xpu:1")]
    assert numbered(tree.find({"ZE_AFFINITY_MASK": "1"})) == [("dg2", "xpu:0")]
    by_address = {"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}
    assert numbered(tree.find(by_address | {"ZE_AFFINITY_MASK": "2"})) == [("dg2", "xpu:0")]


def test_a_gpu_newer_than_the_list_has_an_unknown_arch_and_says_so(tree: Tree) -> None:
    tree.gpu(0xEEEE, "03:00.0")
    [device] = tree.find()
    assert device == Device(
        target=Target("intel", "unknown"),
        name="Intel GPU eeee",
        torch_device="xpu:0",
        driver="xe",
        note="its PCI device id is in no list here: probably newer than the listed archs",
    )


def test_a_newer_gpu_in_the_processor_comes_after_the_discrete_ones(tree: Tree) -> None:
    tree.gpu(0xEEEE, "00:02.0")
    tree.gpu(A770, "03:00.0")
    assert numbered(tree.find()) == [("dg2", "xpu:0"), ("unknown", None)]


def test_what_is_not_intels_or_older_than_level_zero_is_left_out(tree: Tree) -> None:
    tree.gpu(0x73BF, "03:00.0", vendor="0x1002", driver="amdgpu")
    tree.gpu(0x5912, "00:02.0", driver="i915")
    tree.gpu(A770, "04:00.0", driver="vfio-pci")
    assert tree.find() == []


def test_each_tile_of_a_data_center_gpu_max_is_a_device(tiled: Tree) -> None:
    devices = tiled.find()
    assert numbered(devices) == [("pvc", f"xpu:{number}") for number in range(4)]
    assert [device.note for device in devices] == ["tile 0 of 2", "tile 1 of 2"] * 2
    assert {device.memory_bytes for device in devices} == {64 * GIB}


def test_xe_shows_tiles_as_such(tree: Tree) -> None:
    memory = {f"tile{tile}/physical_vram_size_bytes": 64 * GIB for tile in (0, 1)}
    tree.gpu(MAX_1550, "29:00.0", files=memory)
    assert [(device.note, device.memory_bytes) for device in tree.find()] == [
        ("tile 0 of 2", 64 * GIB),
        ("tile 1 of 2", 64 * GIB),
    ]


def test_the_second_gt_of_a_client_gpu_is_its_media_engine_and_no_tile(tree: Tree) -> None:
    tree.gpu(ARC_MTL, "00:02.0", driver="i915", files={"drm/card0/gt/gt0/id": 0, "drm/card0/gt/gt1/id": 1})
    assert numbered(tree.find()) == [("mtl", "xpu:0")]


@pytest.mark.parametrize(
    ("environ", "notes"),
    [
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, ["", ""]),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_AFFINITY_MASK": "1.0"}, [""]),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMBINED", "ZE_AFFINITY_MASK": "3,0"}, ["tile 0 of 2", "tile 1 of 2"]),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "composite", "ZE_AFFINITY_MASK": "1"}, ["tile 1 of 2"]),
        ({"ZE_AFFINITY_MASK": "0.1"}, []),
    ],
)
def test_the_hierarchy_decides_what_a_device_is(tiled: Tree, environ: Mapping[str, str], notes: list[str]) -> None:
    devices = tiled.find(environ)
    assert [device.note for device in devices] == notes
    assert [device.torch_device for device in devices] == [f"xpu:{number}" for number in range(len(notes))]
    if "" in notes:
        assert {device.memory_bytes for device in devices} == {128 * GIB}


@pytest.mark.parametrize(
    ("mask", "flat", "composite"),
    [
        (None, "00 01 10 20 21", "00 01 10 20 21"),
        ("", "00 01 10 20 21", "00 01 10 20 21"),
        ("default", "00 01 10 20 21", "00 01 10 20 21"),
        ("0", "00", "00 01"),
        ("1", "01", "10"),
        ("2,0", "00 10", "00 01 20 21"),
        ("0,0", "00", "00 01"),
        ("4", "21", ""),
        ("9,1", "01", "10"),
        ("0.1", "", "01"),
        ("0.1,2", "10", "01 20 21"),
        ("0.7,1", "01", "10"),
        ("9.x,1", "01", "10"),
        ("0.0.1", "", ""),
        ("0.x", "", ""),
        (" 1", "01", "10"),
        ("1 ,0", "00 01", "00 01 10"),
        ("1x", "01", "10"),
        ("0x2", "10", "20 21"),
        ("02", "10", "20 21"),
        ("09", "00", "00 01"),
        ("-1,1", "01", "10"),
        ("4294967297", "01", "10"),
        ("1,", "01", "10"),
        ("1.", "01", "10"),
        ("0,,1", "", ""),
        (",", "", ""),
        ("gpu", "", ""),
        (".1", "", ""),
    ],
)
def test_the_affinity_mask_is_read_as_level_zero_reads_it(mask: str | None, flat: str, composite: str) -> None:
    def shown(pairs: tuple[tuple[int, int], ...]) -> str:
        return " ".join(f"{gpu}{tile}" for gpu, tile in pairs)

    assert shown(visible_tiles(mask, [2, 1, 2], flat=True)) == flat
    assert shown(visible_tiles(mask, [2, 1, 2], flat=False)) == composite


def test_another_selector_makes_the_numbers_presumed(two: Tree) -> None:
    assert {device.note for device in two.find({"ONEAPI_DEVICE_SELECTOR": "level_zero:1"})} == {SELECTED}
    assert {device.note for device in two.find({"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu"})} == {""}


@pytest.mark.parametrize(
    ("build", "note"),
    [
        (TorchBuild("2.13.0+cpu"), "torch 2.13.0 is a CPU build: install an XPU build to use this device"),
        (TorchBuild("2.13.0", cuda="13.0"), "torch 2.13.0 is a CUDA build: install an XPU build to use this device"),
        (None, "torch is not installed: install an XPU build to use this device"),
    ],
)
def test_a_torch_without_xpu_reaches_no_device_and_the_note_says_why(
    two: Tree, build: TorchBuild | None, note: str
) -> None:
    devices = two.find(build=lambda: build)
    assert [(device.torch_device, device.note) for device in devices] == [(None, note), (None, note)]


def test_a_container_is_shown_only_the_gpus_that_it_was_given(two: Tree) -> None:
    (two.dri / "renderD129").unlink()
    assert numbered(two.find()) == [("bmg", "xpu:0")]


def test_a_container_without_any_device_file_is_told_so(two: Tree) -> None:
    for node in ("renderD128", "renderD129"):
        (two.dri / node).unlink()
    assert [(device.target.arch, device.torch_device, device.note) for device in two.find()] == [
        ("dg2", None, f"{two.dri}/renderD129 does not exist: give the container that device"),
        ("bmg", None, f"{two.dri}/renderD128 does not exist: give the container that device"),
    ]


def test_a_gpu_that_this_user_may_not_open_has_no_number(two: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: path == two.dri / "renderD128")
    assert [(device.target.arch, device.torch_device, device.note) for device in two.find()] == [
        ("bmg", "xpu:0", ""),
        (
            "dg2",
            None,
            f"no permission to open {two.dri}/renderD129: add this user to the group that owns it (render)",
        ),
    ]


def test_no_tree_means_no_device(tmp_path: Path) -> None:
    assert find(sysfs=tmp_path, dri=tmp_path, environ={}, build=xpu_build) == []


def test_devices_that_are_not_what_they_should_be_are_skipped(two: Tree) -> None:
    two.write("class/drm/renderD140/device/vendor", "intel\n")
    two.write("class/drm/renderD141/device/uevent", "DRIVER=xe\n")
    two.write("class/drm/renderD142/device/vendor", "0x8086\n")
    two.write("class/drm/card0/device/vendor", "0x8086\n")
    assert numbered(two.find()) == [("dg2", "xpu:0"), ("bmg", "xpu:1")]


def test_what_nobody_foresaw_means_no_device_and_leaves_its_reason_in_the_log(
    two: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise RuntimeError("no version today")

    with caplog.at_level(logging.DEBUG, logger="portakernel"):
        assert two.find(build=broken) == []
    assert "RuntimeError: no version today" in caplog.text


def test_probing_this_machine_imports_neither_torch_nor_a_vendor_library() -> None:
    code = """
import sys
from portakernel_backends.intel import portakernel_targets
from portakernel_backends.intel.probe import find
assert portakernel_targets() == find()
loaded = {name.partition('.')[0] for name in sys.modules}
assert not loaded & {'torch', 'triton', 'dpctl', 'ctypes'}, loaded
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
