"""The registry: built once, then immutable."""

from __future__ import annotations

import threading

import pytest

from portakernel.contracts import own_contracts
from portakernel.errors import UnknownNameError
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import REFERENCE, Registry

HOOK = "from portakernel.hookspecs import hookimpl\n@hookimpl\ndef portakernel_targets():\n"
COUNTING = f"""\
from pathlib import Path
{HOOK}\
    with Path(__file__).with_name("calls").open("a") as file:
        file.write("x")
    return []
"""


def test_it_holds_every_kernel_by_its_full_name_and_the_references(world):
    world.plugin("p", {}, {"op": "rms_norm"}, {"name": "second"})
    registry = world.registry()
    references = [f"reference.{op}" for op in own_contracts()]
    assert list(registry.kernels) == ["p.add", "p.rms_norm", "p.second", *references]
    assert [kernel.name for kernel in registry.for_op("add")] == ["p.add", "p.second", "reference.add"]
    assert registry.plugins() == ("p", "reference")
    assert list(registry.backends) == ["acme"]
    assert registry.spaces["acme"].archs == ("acme1", "acme2")


@pytest.mark.parametrize("mapping", ["kernels", "backends", "spaces"])
def test_it_cannot_be_changed(world, mapping):
    registry = world.registry()
    with pytest.raises(TypeError, match="does not support item assignment"):
        getattr(registry, mapping)["x"] = None
    with pytest.raises(TypeError, match="does not support item deletion"):
        del getattr(registry, mapping)["acme"]
    with pytest.raises(AttributeError):
        registry.kernels["reference.add"].op = "x"


def test_an_unknown_op_offers_the_nearest(world):
    with pytest.raises(UnknownNameError, match=r"^unknown op 'rmsnorm'; did you mean 'rms_norm' or 'add_rms_norm'\?$"):
        world.registry().for_op("rmsnorm")


def test_a_name_means_a_kernel_or_all_of_a_plugin(world):
    world.plugin("p", {}, {"op": "rms_norm"})
    registry = world.registry()
    assert registry.named("p.add") == (registry.kernels["p.add"],)
    assert registry.named("p") == (registry.kernels["p.add"], registry.kernels["p.rms_norm"])
    assert [kernel.name for kernel in registry.named("reference")] == [f"reference.{op}" for op in own_contracts()]


def test_an_unknown_name_offers_the_nearest_and_says_where_it_stands(world):
    world.plugin("p")
    with pytest.raises(UnknownNameError) as caught:
        world.registry().named("p.ad", where="environment: use")
    message = "environment: use: unknown kernel or plugin 'p.ad'; did you mean 'p.add'?"
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["bad", "bad.add"])
def test_the_name_of_a_broken_plugin_says_that_it_is_broken(world, name):
    package = world.site.package("bad", plugin="schema_version: 1\nplugin: bad\ncolour: red\n")
    registry = Registry(PluginManager([*world.packages, package]))
    with pytest.raises(UnknownNameError) as caught:
        registry.named(name)
    message = str(caught.value)
    assert message.startswith(f"unknown kernel or plugin {name!r}; ")
    assert "Plugin bad (bad-dist 1.0) is broken: " in message
    assert message.endswith(
        f"{package.folder / 'plugin.yaml'}:3: colour: unknown key; "
        "known: defaults, foreign, hooks, kernels, modes, offline, ops, plugin, plugin_api, ready, requires,"
        " schema_version, summary, units"
    )


def test_a_vendor_belongs_to_one_backend(world):
    world.backend("rival", vendor="acme", lines=[["r1"]])
    manager = PluginManager(world.packages)
    registry = Registry(manager)
    assert list(registry.backends) == ["acme"]
    assert registry.spaces["acme"].archs == ("acme1", "acme2")
    (fault,) = manager.broken
    place = f"{world.packages[1].folder / 'backend.yaml'}:3: vendor"
    assert fault.reason == f"{place}: vendor 'acme' is taken by backend acme (portakernel 1.0)"


def test_a_backend_that_lost_its_vendor_is_not_asked_for_devices(world):
    """Its devices would be attributed to the vendor that it does not have."""
    source = "from portakernel.words.target import Device, Target\n" + HOOK
    device = "    return [Device(Target('acme', 'acme1'), 'Rival', 'acme:0')]\n"
    world.backend("rival", vendor="acme", lines=[["acme1"]], source=source + device)
    assert [device.name for device in Registry(PluginManager(world.packages)).devices] == []


def test_the_name_of_the_references_is_reserved(world):
    package = world.site.package(
        REFERENCE, plugin={"schema_version": 1, "plugin": REFERENCE, "kernels": [world.kernel(REFERENCE)]}
    )
    manager = PluginManager([*world.packages, package])
    registry = Registry(manager)
    assert registry.kernels["reference.add"].entry == "portakernel.references.add:forward"
    assert [fault.reason for fault in manager.broken] == [
        "the name 'reference' is taken by portakernel's own references"
    ]


def test_devices_are_probed_when_first_asked_for_and_then_kept(world):
    world.packages.clear()
    calls = world.backend("acme", lines=[["acme1"]], source=COUNTING).folder / "calls"
    registry = world.registry()
    assert not calls.exists()
    assert registry.devices == registry.devices == ()
    assert calls.read_text(encoding="utf-8") == "x"


def test_threads_that_come_first_together_probe_once(world):
    world.packages.clear()
    calls = world.backend("acme", lines=[["acme1"]], source=COUNTING).folder / "calls"
    registry, together = world.registry(), threading.Barrier(8)

    def ask() -> None:
        together.wait()
        _ = registry.devices

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.read_text(encoding="utf-8") == "x"


def test_an_arch_in_no_line_is_a_line_of_its_own(world):
    archs = {"b1": {"name": "1", "source": "invented"}, "b2": {"name": "2", "source": "invented"}}
    world.backend("other", lines=[["b1"]], archs=archs)
    assert world.registry().spaces["other"].lines == (("b1",), ("b2",))


def test_the_reference_serves_every_torch_device_but_attached_ones_with_all_features(world):
    world.backend("side", attach=True, torch_device="cpu", lines=[["s1"]])
    registry = world.registry()
    ((_, capability),) = registry.kernels["reference.rms_norm"].variants
    chosen = [capability.selector(vendor).include for vendor in ("acme", "nowhere", "side")]
    assert chosen == [("any",), ("any",), ()]
    assert capability.features == {"weight_offset"}
    assert capability.properties == {"deterministic", "graph_capture", "inplace"}
    assert (capability.saves, capability.has_backward, capability.forward_ad) == ("contract", True, True)
    reference = registry.kernels["reference.add"]
    assert (reference.is_reference, reference.first_party, reference.backward) == (True, True, None)


def test_a_mode_is_found_by_plugin_and_name(world):
    mode = {"context": "fake_p:run", "torch_device": "cpu", "max_elements": 9}
    world.plugin("p", modes={"slow": mode})
    registry = world.registry()
    assert registry.mode("p", "slow").max_elements == 9
    assert registry.mode("p", "fast") is None
    assert registry.mode("q", "slow") is None
