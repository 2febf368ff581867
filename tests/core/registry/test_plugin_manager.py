"""Broken plugins are kept with their reason and stop nobody else."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from portakernel.claims.capability import ReasonCode
from portakernel.contracts import own_contracts
from portakernel.registry.plugin_manager import Package, PluginManager
from portakernel.registry.registry import Registry

BROKEN = Path(__file__).resolve().parents[2] / "data" / "broken_plugins"
PLUGIN = "schema_version: 1\nplugin: {}\n"
BACKEND = "schema_version: 1\nbackend: {0}\nvendor: {0}\ntorch_device: {0}\n"
HOOK = "from portakernel.hookspecs import hookimpl\n\n@hookimpl\ndef {}:\n    {}\n"


@pytest.fixture
def broken(monkeypatch):
    """A package of ``tests/data/broken_plugins``, as discovery would find it."""
    monkeypatch.syspath_prepend(BROKEN)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = [folder.name for folder in BROKEN.iterdir()]
    yield lambda name: Package(name, name, f"{name}-dist", "1.0", BROKEN / name)
    for name in names:
        sys.modules.pop(name, None)


REASONS = {
    "raises_on_import": ("import", "importing raises_on_import raised RuntimeError: the driver is not there"),
    "exits_on_import": ("import", "importing exits_on_import raised SystemExit: this machine is not supported"),
    "misspells_a_hook": (
        "import",
        (
            "importing misspells_a_hook raised PluginError: hook 'portakernel_kernel' does not exist; did you mean"
            " 'portakernel_kernels' or 'portakernel_cli' or 'portakernel_targets'?"
        ),
    ),
    "forgets_the_marker": (
        "import",
        (
            "importing forgets_the_marker raised PluginError: portakernel_kernels lacks the decorator"
            " @portakernel.hookspecs.hookimpl"
        ),
    ),
    "hides_a_hook": (
        "import",
        (
            "importing hides_a_hook raised PluginError: hides_a_hook implements portakernel_decided; list it"
            " under `hooks:` in plugin.yaml"
        ),
    ),
    "lacks_a_hook": (
        "import",
        (
            "importing lacks_a_hook raised PluginError: lacks_a_hook does not implement portakernel_kernels, as"
            " its manifest says"
        ),
    ),
    "raises_in_a_hook": ("hook", "portakernel_kernels raised OSError: the list of kernels is not readable"),
}


def test_every_broken_plugin_on_disk_is_tested():
    assert {folder.name for folder in BROKEN.iterdir()} == {*REASONS, "takes_other_arguments"}


@pytest.mark.parametrize(("name", "stage", "reason"), [(name, *rest) for name, rest in REASONS.items()])
def test_a_broken_plugin_is_kept_with_stage_reason_and_traceback_and_the_others_work(
    broken, world, name, stage, reason
):
    world.plugin("sound", {"name": "static"})
    manager = PluginManager([broken(name), *world.packages])
    registry = Registry(manager)
    (fault,) = manager.broken
    assert (fault.package.name, fault.stage, fault.reason) == (name, stage, reason)
    assert fault.traceback.startswith("Traceback (most recent call last):\n")
    last = reason.split(" raised ")[1] if "PluginError" not in reason else reason.split("PluginError: ")[1]
    assert fault.traceback.rstrip().endswith(last)
    assert manager.broken_names() == {name}
    assert "sound.static" in registry.kernels


def test_a_hook_with_other_arguments_is_told_by_name(broken):
    manager = PluginManager([broken("takes_other_arguments")])
    assert manager.call("portakernel_kernels") == []
    (fault,) = manager.broken
    assert fault.stage == "import"
    assert "PluginValidationError" in fault.reason
    assert "registry" in fault.reason


def test_a_module_that_failed_is_imported_once(broken):
    manager = PluginManager([broken("raises_on_import")])
    for _ in range(3):
        assert manager.call("portakernel_kernels") == []
    assert len(manager.broken) == 1


def test_a_hook_that_raises_again_is_kept_once(broken):
    manager = PluginManager([broken("raises_in_a_hook")])
    for _ in range(3):
        assert manager.call("portakernel_kernels") == []
    assert len(manager.broken) == 1


@pytest.mark.parametrize("off", [False, True])
def test_a_fault_that_several_registries_find_is_kept_once(site, off):
    package = site.package("reference", plugin=PLUGIN.format("reference"))
    manager = PluginManager([package], disabled=frozenset({"reference"} if off else ()))
    for _ in range(3):
        Registry(manager)
    (fault,) = manager.broken_but_off if off else manager.broken
    assert fault.reason == "the name 'reference' is taken by portakernel's own references"


def test_a_hook_that_exits_the_program_is_contained(site):
    source = HOOK.format("portakernel_kernels()", "raise SystemExit(3)")
    manager = PluginManager(
        [site.package("p", plugin=PLUGIN.format("p") + "hooks: [portakernel_kernels]\n", source=source)]
    )
    assert manager.call("portakernel_kernels") == []
    assert [fault.reason for fault in manager.broken] == ["portakernel_kernels raised SystemExit: 3"]


def test_a_hook_that_returns_nothing_has_not_failed(site):
    """`portakernel_decided` and `portakernel_cli` return nothing when they work."""
    source = HOOK.format("portakernel_decided(decision)", "decision.append(1)")
    package = site.package("p", plugin=PLUGIN.format("p") + "hooks: [portakernel_decided]\n", source=source)
    manager = PluginManager([package])
    seen: list[int] = []
    assert manager.call("portakernel_decided", decision=seen) == [(package, None)]
    assert seen == [1]
    assert manager.broken == []


def test_a_hook_is_called_on_each_package_that_lists_it_and_on_no_other(site):
    packages = []
    for name in ("b", "a"):
        source = HOOK.format("portakernel_kernels()", f"return [{name!r}]")
        manifest = PLUGIN.format(name) + "hooks: [portakernel_kernels]\n"
        packages.append(site.package(name, plugin=manifest, source=source))
    packages.append(site.package("quiet", plugin=PLUGIN.format("quiet"), source="raise SystemExit('imported')"))
    manager = PluginManager(packages)
    assert manager.call("portakernel_kernels") == [(packages[0], ["b"]), (packages[1], ["a"])]
    assert manager.call("portakernel_decided", decision=None) == []
    assert "fake_quiet" not in sys.modules
    assert manager.broken == []


def test_a_backends_targets_hook_needs_no_listing(site):
    source = HOOK.format("portakernel_targets()", "return []")
    package = site.package("b", backend=BACKEND.format("b"), source=source)
    manager = PluginManager([package])
    assert manager.call("portakernel_targets") == [(package, [])]
    lacking = PluginManager([site.package("c", backend=BACKEND.format("c"))])
    assert lacking.call("portakernel_targets") == []
    reason = "importing fake_c raised PluginError: fake_c does not implement portakernel_targets, as its manifest says"
    assert [fault.reason for fault in lacking.broken] == [reason]


def test_both_manifests_may_lie_in_one_folder(site):
    source = (
        HOOK.format("portakernel_targets()", "return []") + "@hookimpl\ndef portakernel_kernels():\n    return ()\n"
    )
    manifest = PLUGIN.format("b") + "hooks: [portakernel_kernels]\n"
    package = site.package("b", plugin=manifest, backend=BACKEND.format("b"), source=source)
    manager = PluginManager([package])
    assert manager.plugins["b"][0] is manager.backends["b"][0] is package
    assert manager.call("portakernel_targets") == [(package, [])]
    assert manager.call("portakernel_kernels") == [(package, ())]
    assert manager.broken == []


@pytest.mark.parametrize("wrong", ["plugin.yaml", "backend.yaml"])
def test_of_two_manifests_in_one_folder_a_wrong_one_breaks_both(site, wrong):
    texts = {"plugin.yaml": PLUGIN.format("b"), "backend.yaml": BACKEND.format("b")}
    texts[wrong] += "colour: red\n"
    package = site.package("b", plugin=texts["plugin.yaml"], backend=texts["backend.yaml"])
    manager = PluginManager([package])
    assert (manager.plugins, manager.backends) == ({}, {})
    (fault,) = manager.broken
    assert fault.stage == "manifest"
    assert fault.reason.startswith(f"{package.folder / wrong}:{texts[wrong].count(chr(10))}: colour: unknown key; ")


def test_a_package_without_a_manifest_is_told_where_it_was_looked_for(site):
    package = site.package("p")
    (fault,) = PluginManager([package]).broken
    assert (fault.stage, fault.reason) == ("manifest", f"{package.folder} holds neither plugin.yaml nor backend.yaml")


@pytest.mark.parametrize(("file", "key"), [("plugin", "plugin"), ("backend", "backend")])
def test_the_manifests_name_is_the_entry_points(site, file, key):
    text = {"plugin": PLUGIN, "backend": BACKEND}[file].format("other")
    package = site.package("p", **{file: text})
    (fault,) = PluginManager([package]).broken
    place = f"{package.folder / file}.yaml:2: {key}"
    assert fault.reason == f"{place}: is 'other', but the entry point of p-dist is named 'p'; they must be equal"
    assert PluginManager([package]).plugins == PluginManager([package]).backends == {}


def named(site, module: str, distribution: str, version: str = "1.0") -> Package:
    manifest = PLUGIN.format("same")
    ours = distribution == "portakernel"
    return site.package(
        "same", module=module, plugin=manifest, distribution=distribution, version=version, first_party=ours
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_taken_name_stays_with_the_first_party(site, order):
    packages = [
        named(site, "fake_a", "portakernel"),
        named(site, "fake_b", "bees", "2.0"),
        named(site, "fake_c", "seas"),
    ]
    manager = PluginManager([packages[i] for i in order])
    assert manager.plugins["same"][0] is packages[0]
    reasons = {fault.package.distribution: (fault.stage, fault.reason) for fault in manager.broken}
    assert set(reasons) == {"bees", "seas"}
    stage, reason = reasons["seas"]
    assert stage == "name"
    assert reason.startswith("the name 'same' is taken by ")
    assert "portakernel 1.0" in reason
    assert "bees 2.0" in reason
    assert reason.endswith("; rename one of the entry points")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_strangers_with_one_name_neither_wins(site, order):
    packages = [named(site, "fake_b", "bees", "2.0"), named(site, "fake_c", "seas")]
    manager = PluginManager([packages[i] for i in order])
    assert manager.plugins == {}
    assert {fault.package.distribution: fault.reason for fault in manager.broken} == {
        "bees": "the name 'same' is taken by seas 1.0; rename one of the entry points",
        "seas": "the name 'same' is taken by bees 2.0; rename one of the entry points",
    }


def test_a_hook_of_who_lost_a_name_is_not_called(site):
    manifest = PLUGIN.format("same") + "hooks: [portakernel_kernels]\n"
    ours = site.package(
        "same", plugin=manifest, source=HOOK.format("portakernel_kernels()", "return []"), first_party=True
    )
    theirs = site.package("same", module="fake_theirs", plugin=manifest, source="raise SystemExit('imported')")
    manager = PluginManager([theirs, ours])
    assert manager.call("portakernel_kernels") == [(ours, [])]
    assert "fake_theirs" not in sys.modules


def test_what_is_disabled_is_read_but_not_imported(site):
    source = "raise SystemExit('imported')"
    packages = [
        site.package("p", plugin=PLUGIN.format("p") + "hooks: [portakernel_kernels]\n", source=source),
        site.package("b", backend=BACKEND.format("b"), source=source),
    ]
    manager = PluginManager(packages, disabled=frozenset({"p", "b"}))
    assert manager.call("portakernel_kernels") == []
    assert manager.call("portakernel_targets") == []
    assert not {"fake_p", "fake_b"} & sys.modules.keys()
    assert manager.broken == []
    assert (set(manager.plugins), set(manager.backends)) == ({"p"}, {"b"})


def test_strictness_is_passed_to_the_manifests(site):
    package = site.package("p", plugin=PLUGIN.format("p").replace("1", "2"))
    assert PluginManager([package], strict=False).broken == []
    (fault,) = PluginManager([package], strict=True).broken
    assert fault.reason.endswith(":1: schema_version: is 2; this portakernel knows versions up to 1")


# --- portakernel_kernels ---------------------------------------------------------------------------------------------

GOOD = "'op': 'add', 'entry': 'fake_p:run', 'targets': {'acme': 'any'}, 'dtypes': {'x': ['float32'], 'y': ['x']}"


def hooked(world, returned: str, *kernels) -> Registry:
    """The registry with a plugin ``p`` whose hook returns ``returned``."""
    manifest = {"schema_version": 1, "plugin": "p", "hooks": ["portakernel_kernels"], "kernels": list(kernels)}
    source = HOOK.format("portakernel_kernels()", f"return {returned}")
    package = world.site.package("p", plugin=manifest, source=source)
    world.plugin("sound")
    return Registry(PluginManager([package, *world.packages]))


def test_a_hooks_kernels_stand_beside_the_manifests(world):
    registry = hooked(world, f"[{{{GOOD}, 'name': 'hooked', 'priority': 4}}]", world.kernel("p"))
    assert registry.manager.broken == []
    assert [kernel.name for kernel in registry.named("p")] == ["p.add", "p.hooked"]
    assert registry.kernels["p.hooked"].priority.of(world.request()) == 4


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("3", ["portakernel_kernels", "int"]),
        ("None", ["portakernel_kernels", "None"]),
        ("'add'", ["portakernel_kernels", "'a'"]),
        ("['add']", ["portakernel_kernels", "'add'"]),
        ("[{'op': 'add'}]", ["portakernel_kernels", "[0]", "required key 'entry' is missing"]),
        (f"[{{{GOOD}}}, {{'op': 5, 'entry': 'fake_p:run'}}]", ["portakernel_kernels", "[1].op", "found 5"]),
        (
            f"[{{{GOOD}, 'prioritee': 3}}]",
            ["portakernel_kernels", "[0].prioritee: unknown key; did you mean 'priority'?"],
        ),
        (f"[{{{GOOD}, 'plugin': 'p'}}]", ["portakernel_kernels", "[0].plugin: unknown key; "]),
        ("[{'op': 'nope', 'entry': 'fake_p:run'}]", ["portakernel_kernels[0].op: unknown op 'nope'"]),
        (f"[{{{GOOD}}}, {{{GOOD}}}]", ["portakernel_kernels[1]", "is a second kernel named 'p.add'"]),
        ("[{'op': 'add', 'entry': 'os:system'}]", ["portakernel_kernels[0].entry", "outside the plugin's own package"]),
        ("(1 / 0 for _ in range(1))", ["portakernel_kernels", "ZeroDivisionError"]),
    ],
    ids=[
        "int",
        "None",
        "text",
        "texts",
        "missing",
        "type",
        "unknown",
        "manifest key",
        "op",
        "twice",
        "outside",
        "generator",
    ],
)
def test_what_a_hook_returns_is_checked_and_breaks_its_plugin_alone(world, returned, words):
    registry = hooked(world, returned)
    assert "sound.add" in registry.kernels
    assert not [name for name in registry.kernels if name.startswith("p.")]
    (fault,) = registry.manager.broken
    assert fault.package.name == "p"
    assert [word for word in words if word not in fault.reason] == []


def test_a_hook_that_repeats_a_kernel_of_the_manifest_is_refused(world):
    registry = hooked(world, f"[{{{GOOD}}}]", world.kernel("p"))
    assert not [name for name in registry.kernels if name.startswith("p.")]
    (fault,) = registry.manager.broken
    assert fault.reason == "p (p-dist 1.0): portakernel_kernels repeats a kernel of plugin.yaml"


def test_a_kernel_that_does_not_fit_breaks_its_plugin_alone(world):
    package = world.site.package(
        "p",
        plugin={
            "schema_version": 1,
            "plugin": "p",
            "kernels": [world.kernel("p", op="add"), {"op": "add", "name": "x", "entry": "a:b"}],
        },
    )
    world.plugin("sound")
    registry = Registry(PluginManager([package, *world.packages]))
    assert set(registry.kernels) == {"sound.add", *(f"reference.{op}" for op in own_contracts())}
    (fault,) = registry.manager.broken
    assert (fault.stage, fault.package) == ("kernels", package)
    assert fault.reason.startswith(f"{package.folder / 'plugin.yaml'}:")
    entry, *others = fault.reason.splitlines()
    assert entry.endswith("kernels[1].entry: 'a:b' is outside the plugin's own package 'fake_p'")
    assert any("kernels[1]" in other and "claims no targets" in other for other in others)


# --- portakernel_targets ---------------------------------------------------------------------------------------------

DEVICE = "Device(Target('acme', 'acme1'), 'Acme 1', 'acme:0')"


def found_by(world, returned: str) -> Registry:
    """The registry in which vendor ``acme``'s backend returns ``returned``, beside a sound backend."""
    world.packages.clear()
    imports = "from portakernel.words.target import Device, Target\n"
    source = imports + HOOK.format("portakernel_targets()", f"return {returned}")
    world.backend("acme", lines=[["acme1"]], source=source)
    sound = imports + HOOK.format("portakernel_targets()", "return [Device(Target('sound', 's1'), 'Sound', 'sound:0')]")
    world.backend("sound", lines=[["s1"]], source=sound)
    return Registry(PluginManager(world.packages))


@pytest.mark.parametrize(
    ("returned", "names"),
    [("[]", []), ("()", []), (f"[{DEVICE}]", ["Acme 1"]), (f"({DEVICE}, {DEVICE})", ["Acme 1", "Acme 1"])],
)
def test_a_backend_returns_its_devices(world, returned, names):
    registry = found_by(world, returned)
    assert [device.name for device in registry.devices] == [*names, "Sound"]
    assert registry.manager.broken == []


@pytest.mark.parametrize(
    ("returned", "kind"),
    [("None", "NoneType"), ("3", "int"), ("'gpu'", "str"), ("['acme:acme1']", "str"), ("{}", "dict")],
)
def test_what_is_no_device_is_left_out_and_told(world, returned, kind):
    registry = found_by(world, returned)
    assert [device.name for device in registry.devices] == ["Sound"]
    (fault,) = registry.manager.broken
    assert (fault.package.name, fault.stage) == ("acme", "hook")
    assert fault.reason == f"portakernel_targets returned a {kind}; it must return Devices"


@pytest.mark.parametrize(
    "device",
    [
        "Device('acme:acme1', 'Acme 1', 'acme:0')",
        "Device(Target('sound', 's1'), 'Hijacked', 'sound:0')",
        "Device(Target('acme', 'acme1'), 'Acme 1', 3)",
    ],
    ids=["target as text", "another vendor's", "torch device as number"],
)
def test_a_device_that_is_not_the_backends_to_offer_is_left_out_and_told(world, device):
    registry = found_by(world, f"[{device}]")
    assert [found.name for found in registry.devices] == ["Sound"]
    assert registry.manager.broken_names() == {"acme"}


@pytest.mark.parametrize("attach", [False, True])
@pytest.mark.parametrize("said", [False, True])
def test_whether_a_device_is_attached_is_what_the_manifest_says_and_not_the_hook(world, attach, said):
    source = HOOK.format("portakernel_targets()", f"return [Device(Target('side', 's1'), 'S', 'cpu', attached={said})]")
    source = f"from portakernel.words.target import Device, Target\n{source}"
    world.backend("side", attach=attach, torch_device="cpu", lines=[["s1"]], source=source)
    (device,) = world.registry().devices
    assert device.attached is attach


def test_devices_of_a_list_with_garbage_in_it_are_kept(world):
    registry = found_by(world, f"[{DEVICE}, 5]")
    assert [device.name for device in registry.devices] == ["Acme 1", "Sound"]
    assert registry.manager.broken_names() == {"acme"}


def test_a_plugin_that_fails_to_import_later_is_a_reason_and_not_an_error(world):
    world.plugin("p", {"entry": "fake_p.missing:run", "priority": 9})
    world.plugin("q", {"priority": 1})
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    assert [r.code for r in decision.candidate("p.add").rejections] == [ReasonCode.IMPORT_FAILED]
    assert importlib.util.find_spec("fake_p") is not None
