"""Packages are found by their entry points, without importing any of them."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from portakernel.registry.plugin_manager import Package, PluginManager, find_folder, installed_packages, is_own
from portakernel.registry.registry import Registry

OURS = {
    *("conch", "cutlass", "cutlass_dsl", "flash_attn", "flashinfer", "hip", "humming", "inductor", "liger"),
    *("quack", "torch", "triton"),
    *("amd", "apple", "cpu", "intel", "nvidia"),
}
PLUGIN = """\
schema_version: 1
plugin: {name}
hooks: [portakernel_kernels]
kernels:
  - op: add
    entry: {module}:add
    targets: {{cpu: any}}
    dtypes: {{x: [float32], y: [x]}}
"""
SOURCE = """\
from portakernel.hookspecs import hookimpl

@hookimpl
def portakernel_kernels():
    return [{{"op": "add", "name": "hooked", "entry": "{module}:add", "targets": {{"cpu": "any"}},
              "dtypes": {{"x": ["float32"], "y": ["x"]}}}}]
"""


def distribute(folder: Path, distribution: str, entry_points: str, *, version: str = "2.5") -> None:
    """Writes what an installer writes of a distribution."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    importlib.invalidate_caches()


def strangers() -> list[Package]:
    return [package for package in installed_packages() if package.distribution.startswith("stranger")]


def test_an_installed_distribution_is_found_read_and_used(site):
    module = "fake_outer.fake_inner"
    manifest, source = PLUGIN.format(name="strange", module=module), SOURCE.format(module=module)
    site.package("strange", module=module, plugin=manifest, source=source)
    (site.folder / "fake_outer" / "__init__.py").write_text("", encoding="utf-8")
    distribute(site.folder, "stranger-kernels", f"[portakernel]\nstrange = {module}\n")

    (package,) = strangers()
    folder = site.folder / "fake_outer" / "fake_inner"
    assert package == Package("strange", module, "stranger-kernels", "2.5", folder)
    assert str(package) == "strange (stranger-kernels 2.5)"
    assert not package.first_party
    manager = PluginManager()
    assert manager.plugins["strange"][0] == package
    assert not {"fake_outer", module} & sys.modules.keys()

    registry = Registry(manager)
    assert [kernel.name for kernel in registry.named("strange")] == ["strange.add", "strange.hooked"]
    assert manager.broken == []
    assert module in sys.modules


def test_first_party_packages_come_first_then_by_distribution_and_name(site):
    for name in ("zeta", "alpha"):
        site.package(name, plugin=PLUGIN.format(name=name, module=f"fake_{name}"))
    distribute(site.folder, "stranger-two", "[portakernel]\nzeta = fake_zeta\nalpha = fake_alpha\n")
    found = [(package.first_party, package.name) for package in installed_packages()]
    assert [name for first_party, name in found if first_party] == sorted(OURS)
    assert [package.name for package in strangers()] == ["alpha", "zeta"]
    assert all(first_party for first_party, _ in found[: len(OURS)])


def test_who_calls_itself_portakernel_is_first_party_by_its_place_alone(site):
    site.package("strange", plugin=PLUGIN.format(name="strange", module="fake_strange"))
    distribute(site.folder, "portakernel", "[portakernel]\nstrange = fake_strange\n")
    found = {package.name: package for package in installed_packages()}
    strange = found["strange"]
    assert (strange.distribution, strange.version, strange.first_party) == ("portakernel", "2.5", False)
    assert strange.is_impostor
    # whose metadata comes first on the path hides that of others with its name, but not what they ship
    assert {name for name, package in found.items() if package.first_party} == OURS
    assert PluginManager().broken == []


def test_who_registers_a_package_of_ours_again_takes_nothing(site):
    distribute(site.folder, "portakernel", "[portakernel]\ntorch = portakernel_plugins.torch\n")
    distribute(site.folder, "stranger-kernels", "[portakernel]\ntorch = portakernel_plugins.torch\n")
    assert sorted(package.name for package in installed_packages() if package.first_party) == sorted(OURS)
    manager = PluginManager()
    assert manager.plugins["torch"][0].module == "portakernel_plugins.torch"
    assert manager.broken == []


def test_a_link_from_our_folder_to_a_strangers_makes_nothing_ours(site, monkeypatch):
    real = site.package("strange", plugin=PLUGIN.format(name="strange", module="fake_strange")).folder
    ours = site.folder / "portakernel_plugins"
    (ours / "own").mkdir(parents=True)
    (ours / "strange").symlink_to(real, target_is_directory=True)
    monkeypatch.setattr("portakernel.registry.plugin_manager._own_folders", lambda: frozenset({ours.resolve()}))
    assert [is_own(ours / "own"), is_own(ours / "strange"), is_own(ours), is_own(None)] == [True, False, False, False]


def test_an_entry_points_attribute_is_not_part_of_its_module(site):
    site.package("strange", plugin=PLUGIN.format(name="strange", module="fake_strange"))
    distribute(site.folder, "stranger-kernels", "[portakernel]\nstrange = fake_strange:plugin\n")
    assert [package.module for package in strangers()] == ["fake_strange"]


def test_entry_points_of_other_groups_are_none_of_ours(site):
    distribute(site.folder, "stranger-kernels", "[pytest12]\nstrange = fake_strange\n")
    assert strangers() == []


def test_a_module_that_is_gone_breaks_its_package_alone(site):
    distribute(site.folder, "stranger-kernels", "[portakernel]\nstrange = fake_gone.inner\n")
    (package,) = strangers()
    assert package.folder is None
    manager = PluginManager()
    (broken,) = manager.broken
    reason = "module 'fake_gone.inner' cannot be found; reinstall stranger-kernels"
    assert (broken.package, broken.stage, broken.reason) == (package, "discovery", reason)
    assert {"torch", "triton"} <= set(manager.plugins)
    assert {"amd", "apple", "cpu", "intel", "nvidia"} <= set(manager.backends)


def test_a_distribution_without_metadata_stops_nobody(site):
    """An interrupted uninstall leaves such folders behind."""
    site.package("strange", plugin=PLUGIN.format(name="strange", module="fake_strange"))
    info = site.folder / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[portakernel]\nstrange = fake_strange\n", encoding="utf-8")
    distribute(site.folder, "stranger-two", "[portakernel]\nother = fake_strange\n")
    manager = PluginManager()
    assert {"torch", "triton"} <= set(manager.plugins)
    for package in manager.packages:
        assert isinstance(package.distribution, str)
        assert isinstance(package.version, str)


def test_a_folder_is_found_without_importing_its_parents(site):
    site.package("deep", module="fake_one.fake_two.fake_three")
    for parent in ("fake_one", "fake_one/fake_two"):
        (site.folder / parent / "__init__.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    importlib.invalidate_caches()
    assert find_folder("fake_one.fake_two.fake_three") == site.folder / "fake_one" / "fake_two" / "fake_three"
    assert not [name for name in sys.modules if name.startswith("fake_one")]


@pytest.mark.parametrize("module", ["fake_space.fake_pkg", "fake_space.fake_inner.fake_pkg", "fake_space.fake_inner"])
def test_a_folder_is_found_inside_namespace_packages(site, module):
    site.package("deep", module="fake_space.fake_inner.fake_pkg")
    site.package("flat", module="fake_space.fake_pkg")
    (site.folder / "fake_space" / "fake_inner" / "__init__.py").unlink(missing_ok=True)
    assert find_folder(module) == site.folder.joinpath(*module.split("."))
    assert not [name for name in sys.modules if name.startswith("fake_space")]


def test_a_plain_modules_folder_is_the_one_that_it_lies_in(site):
    (site.folder / "fake_single.py").write_text("", encoding="utf-8")
    importlib.invalidate_caches()
    assert find_folder("fake_single") == site.folder
    assert find_folder("fake_single.fake_inner") is None


@pytest.mark.parametrize("module", ["fake_nowhere", "fake_nowhere.inner", "portakernel.nowhere"])
def test_what_is_not_installed_has_no_folder(module):
    assert find_folder(module) is None


def test_of_all_that_is_installed_only_a_plugin_that_names_a_hook_is_imported():
    code = """\
import sys
from portakernel.registry.plugin_manager import PluginManager
manager = PluginManager()
assert set(manager.plugins) >= {"torch", "triton"}, manager.plugins
assert set(manager.backends) >= {"amd", "apple", "cpu", "intel", "nvidia"}, manager.backends
from portakernel.registry.registry import Registry
assert "triton.rms_norm" in Registry(manager).kernels
ours = ("portakernel_plugins.", "portakernel_backends.")
heavy = [name for name in sys.modules if name.startswith(ours) and not name.startswith(ours[0] + "inductor")]
heavy += [name for name in ("torch", "triton", "numpy") if name in sys.modules]
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_as_a_wheel_lays_them_out_our_packages_stand_beside_each_other(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    root = Path(__file__).parents[3]
    for folder in ("portakernel", "plugins/portakernel_plugins", "backends/portakernel_backends"):
        shutil.copytree(root / folder, tmp_path / Path(folder).name, ignore=ignored)
    code = """\
import sys
from pathlib import Path
import portakernel
from portakernel.registry.plugin_manager import installed_packages
assert Path(portakernel.__file__).parents[1] == Path(sys.argv[1]), portakernel.__file__
print(*sorted(p.name for p in installed_packages() if p.first_party and Path(sys.argv[1]) in p.folder.parents))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True, timeout=60,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (sorted(OURS), "")
