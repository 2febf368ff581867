from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from portakernel.host.regular_file import read_regular
from portakernel.tensors.torch_build import TorchBuild
from portakernel.tensors.visibility import visible_to_hip, visible_to_rocr
from portakernel.words.target import Device, Target
from portakernel_backends.amd import probe
from portakernel_backends.amd.probe import find

UUID_0, UUID_1 = "GPU-8c2a5c0de0000001", "GPU-0bad5c0de0000002"
GIB = 1 << 30


def hip_build() -> TorchBuild:
    return TorchBuild("2.13.0+rocm7.0", hip="7.0.51831")


class Tree:
    """A /sys with a CPU node and the GPU nodes that a test adds, and a /dev/kfd that may be opened."""

    def __init__(self, root: Path) -> None:
        self.sysfs = root / "sys"
        self.kfd = root / "kfd"
        self.kfd.touch()
        self.nodes = self.sysfs / "class/kfd/kfd/topology/nodes"
        self.write("module/amdgpu/version", "6.14.14\n")
        self.node(0, cpu_cores_count=64, simd_count=0, gfx_target_version=0, banks={0: 512 * GIB})

    def write(self, path: str, text: str) -> None:
        file = self.sysfs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def node(self, number: int, *, banks: Mapping[int, int] | None = None, **properties: int) -> None:
        folder = f"class/kfd/kfd/topology/nodes/{number}"
        self.write(f"{folder}/properties", "".join(f"{name} {value}\n" for name, value in properties.items()))
        for at, (heap, size) in enumerate((banks or {}).items()):
            self.write(f"{folder}/mem_banks/{at}/properties", f"heap_type {heap}\nsize_in_bytes {size}\nflags 0\n")

    def gpu(self, number: int, version: int, *, uuid: str = "", banks: Mapping[int, int] | None = None) -> None:
        unique = int(uuid.removeprefix("GPU-"), 16) if uuid else 0
        self.node(
            number,
            banks=banks,
            cpu_cores_count=0,
            simd_count=1216,
            gfx_target_version=version,
            unique_id=unique,
            drm_render_minor=127 + number,
        )

    def find(
        self,
        environ: Mapping[str, str] | None = None,
        build: Callable[[], TorchBuild | None] = hip_build,
    ) -> list[Device]:
        return find(sysfs=self.sysfs, kfd=self.kfd, environ=environ or {}, build=build)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def two(tree: Tree) -> Tree:
    tree.gpu(1, 90402, uuid=UUID_0)
    tree.gpu(2, 110000, uuid=UUID_1)
    return tree


def test_a_gpu_is_described_whole(tree: Tree) -> None:
    tree.gpu(1, 90402, uuid=UUID_0, banks={1: 192 * GIB})
    tree.write("class/drm/renderD128/device/product_name", "AMD Instinct MI300X OAM\n")
    assert tree.find() == [
        Device(
            target=Target("amd", "gfx942"),
            name="AMD Instinct MI300X OAM",
            torch_device="cuda:0",
            uuid=UUID_0,
            memory_bytes=192 * GIB,
            driver="6.14.14",
        )
    ]


@pytest.mark.parametrize(
    ("version", "arch"),
    [
        (90006, "gfx906"),
        (90008, "gfx908"),
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (100300, "gfx1030"),
        (110000, "gfx1100"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
        (120500, "gfx1250"),
    ],
)
def test_a_version_is_decimal_and_its_name_hexadecimal(tree: Tree, version: int, arch: str) -> None:
    tree.gpu(1, version)
    [device] = tree.find()
    assert device.target == Target("amd", arch)
    assert device.name == f"AMD GPU ({arch})"


def test_two_gpus_are_told_apart_and_numbered_as_the_nodes_are(tree: Tree) -> None:
    tree.gpu(10, 110000, uuid=UUID_1)
    tree.gpu(9, 90402, uuid=UUID_0)
    found = [(device.uuid, device.target.arch, device.torch_device) for device in tree.find()]
    assert found == [(UUID_0, "gfx942", "cuda:0"), (UUID_1, "gfx1100", "cuda:1")]


def test_a_gpu_without_a_unique_id_has_no_uuid(tree: Tree) -> None:
    tree.gpu(1, 110300)
    assert tree.find()[0].uuid is None


def test_partitions_of_one_gpu_say_that_they_share_its_uuid(tree: Tree) -> None:
    tree.gpu(1, 90402, uuid=UUID_0)
    tree.gpu(2, 90402, uuid=UUID_0)
    assert [device.note for device in tree.find()] == ["a partition: its uuid is the GPU's"] * 2


def test_memory_is_the_gpus_own_heaps(tree: Tree) -> None:
    tree.gpu(1, 100300, banks={0: 64 * GIB, 1: GIB, 2: 15 * GIB, 4: 65536})
    tree.gpu(2, 110300, banks={0: 64 * GIB})
    assert [device.memory_bytes for device in tree.find()] == [16 * GIB, None]


def test_a_missing_driver_version_is_left_out(tree: Tree) -> None:
    tree.gpu(1, 90402)
    (tree.sysfs / "module/amdgpu/version").unlink()
    assert tree.find()[0].driver is None


@pytest.mark.parametrize(
    ("build", "note"),
    [
        (TorchBuild("2.13.0+cpu"), "torch 2.13.0 is a CPU build: install a ROCm build to use this device"),
        (
            TorchBuild("2.13.0+cu130", cuda="13.0"),
            "torch 2.13.0 is a CUDA build: install a ROCm build to use this device",
        ),
        (None, "torch is not installed: install a ROCm build to use this device"),
    ],
)
def test_a_torch_without_hip_reaches_no_device_and_the_note_says_why(
    two: Tree, build: TorchBuild | None, note: str
) -> None:
    devices = two.find(build=lambda: build)
    assert [(device.torch_device, device.note) for device in devices] == [(None, note), (None, note)]


def test_a_container_without_the_device_file_reaches_no_device(two: Tree) -> None:
    two.kfd.unlink()
    assert {device.torch_device for device in two.find()} == {None}
    assert {device.note for device in two.find()} == {f"{two.kfd} does not exist: give the container that device"}


def test_a_user_outside_the_group_reaches_no_device(two: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert {device.note for device in two.find()} == {
        f"no permission to open {two.kfd}: add this user to the group that owns it (render or video)"
    }


def test_a_node_that_may_not_be_read_is_another_containers(two: Tree, monkeypatch: pytest.MonkeyPatch) -> None:

    def guarded(path: Path, *, limit: int) -> bytes:
        if path == two.nodes / "1/properties":
            raise PermissionError(1, "Operation not permitted", str(path))
        return read_regular(path, limit=limit)

    monkeypatch.setattr(probe, "read_regular", guarded)
    assert [(device.uuid, device.torch_device) for device in two.find()] == [(UUID_1, "cuda:0")]


def test_no_tree_means_no_device(tmp_path: Path) -> None:
    assert find(sysfs=tmp_path, kfd=tmp_path / "kfd", environ={}, build=hip_build) == []


def test_nodes_that_are_not_what_they_should_be_are_skipped(tree: Tree) -> None:
    tree.write("class/kfd/kfd/topology/nodes/1/properties", "simd_count many\n\n\x00gfx_target_version\n")
    tree.write("class/kfd/kfd/topology/nodes/2/properties", "simd_count 4\ngfx_target_version 0\n")
    (tree.nodes / "3").mkdir()
    (tree.nodes / "not-a-node").mkdir()
    tree.gpu(4, 90402, uuid=UUID_0)
    assert [device.uuid for device in tree.find()] == [UUID_0]


def test_what_nobody_foresaw_means_no_device_and_leaves_its_reason_in_the_log(
    two: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> TorchBuild:
        raise RuntimeError("no version today")

    with caplog.at_level(logging.DEBUG, logger="portakernel"):
        assert two.find(build=broken) == []
    assert "RuntimeError: no version today" in caplog.text


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [UUID_0, UUID_1]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, [UUID_1]),
        ({"ROCR_VISIBLE_DEVICES": "1,0"}, [UUID_1, UUID_0]),
        ({"ROCR_VISIBLE_DEVICES": UUID_1}, [UUID_1]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "1"}, [UUID_1]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [UUID_1]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [UUID_0]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, [UUID_1]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [UUID_1]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}, [UUID_0]),
    ],
)
def test_rocrs_mask_is_applied_before_hips(two: Tree, environ: Mapping[str, str], expected: list[str]) -> None:
    devices = two.find(environ)
    assert [device.uuid for device in devices] == expected
    assert [device.torch_device for device in devices] == [f"cuda:{at}" for at in range(len(expected))]


@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        (None, (0, 1)),
        ("", ()),
        ("0", (0,)),
        (" 1 , 0 ", (1, 0)),
        ("0x1", (1,)),
        ("00", (0,)),
        ("09", ()),
        ("1,1,0", (1,)),
        ("0,5,1", (0,)),
        ("-1", ()),
        ("1x", ()),
        ("0,,1", (0,)),
        (UUID_1.lower(), (1,)),
        ("GPU-0bad", (1,)),
        (f"0,{UUID_1}", (0, 1)),
        ("GPU-", ()),
        ("GPU-ffff,0", ()),
        (UUID_0 + "0", ()),
    ],
)
def test_rocr_visible_devices_is_read_as_rocr_reads_it(mask: str | None, visible: tuple[int, ...]) -> None:
    assert visible_to_rocr(mask, [UUID_0, UUID_1]) == visible


@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        (None, (0, 1)),
        ("", (0, 1)),
        ("1,0", (1, 0)),
        ("0,0,1", (0, 1)),
        ("0, 1", (0,)),
        (" 0", ()),
        ("01", ()),
        ("1x", ()),
        ("0,5,1", (0,)),
        ("-1", ()),
        (UUID_1, (1,)),
        ("GPU-0bad", (1,)),
        (f"1,{UUID_0}", (1, 0)),
        ("GPU-ffff,0", ()),
        (UUID_0.upper(), ()),
    ],
)
def test_hip_visible_devices_is_read_as_hip_reads_it(mask: str | None, visible: tuple[int, ...]) -> None:
    assert visible_to_hip(mask, [UUID_0, UUID_1]) == visible


def test_the_override_changes_the_arch_as_it_does_for_rocm(tree: Tree) -> None:
    tree.gpu(1, 100301)
    [device] = tree.find({"HSA_OVERRIDE_GFX_VERSION": "10.3.0"})
    assert device.target == Target("amd", "gfx1030")
    assert device.note == "HSA_OVERRIDE_GFX_VERSION makes this gfx1031 a gfx1030"


@pytest.mark.parametrize(
    ("environ", "archs"),
    [
        ({"HSA_OVERRIDE_GFX_VERSION_2": "11.0.1"}, ["gfx942", "gfx1101"]),
        ({"HSA_OVERRIDE_GFX_VERSION": "9.0.10", "HSA_OVERRIDE_GFX_VERSION_2": "11.0.2"}, ["gfx90a", "gfx1102"]),
        ({"HSA_OVERRIDE_GFX_VERSION": "gfx1030"}, ["gfx942", "gfx1100"]),
    ],
)
def test_the_override_can_name_one_node_and_is_ignored_when_malformed(
    two: Tree, environ: Mapping[str, str], archs: list[str]
) -> None:
    assert [device.target.arch for device in two.find(environ)] == archs


def test_probing_this_machine_imports_neither_torch_nor_a_vendor_library() -> None:
    code = """
import sys
from portakernel_backends.amd import portakernel_targets
from portakernel_backends.amd.probe import find
assert portakernel_targets() == find()
loaded = {name.partition('.')[0] for name in sys.modules}
assert not loaded & {'torch', 'triton', 'hip', 'amdsmi'}, loaded
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
