"""A package for another plugin API is refused, with a sentence that says which versions fit."""

from __future__ import annotations

import pytest

import portakernel
from portakernel.errors import PluginApiError, UnknownNameError
from portakernel.manifest import api_version as plugin_api
from portakernel.manifest.loading import load_manifest
from portakernel.manifest.models import BackendManifest, PluginManifest
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry

HERE = portakernel.__version__
PLUGIN = "schema_version: 1\nplugin: p\nplugin_api: {}\nkeys_of_another_version: [1, 2]\n"
BACKEND = "schema_version: 1\nplugin_api: {}\nbackend: p\n"


def test_this_portakernels_version_is_public_and_fits():
    assert portakernel.PLUGIN_API == plugin_api.PLUGIN_API
    assert plugin_api.fits(portakernel.PLUGIN_API)


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (9, f"is 9; portakernel {HERE} runs packages written for plugin API 3 to 4: upgrade portakernel"),
        (
            2,
            (
                f"is 2; portakernel {HERE} runs packages written for plugin API 3 to 4: upgrade the package, or install"
                " an older portakernel with it"
            ),
        ),
    ],
)
def test_another_version_is_refused_with_those_that_fit(site, monkeypatch, version, sentence):
    monkeypatch.setattr(plugin_api, "OLDEST_PLUGIN_API", 3)
    monkeypatch.setattr(plugin_api, "PLUGIN_API", 4)
    package = site.package("p", plugin=PLUGIN.format(version))
    (fault,) = PluginManager([package]).broken
    assert (fault.stage, fault.reason) == ("api_version", f"{package.folder / 'plugin.yaml'}:3: plugin_api: {sentence}")


def test_with_one_version_the_sentence_names_that_one(site, monkeypatch):
    monkeypatch.setattr(plugin_api, "OLDEST_PLUGIN_API", 2)
    package = site.package("p", backend=BACKEND.format(3))
    manager = PluginManager([package])
    assert manager.backends == {}
    text = f"is 3; portakernel {HERE} runs packages written for plugin API 2: upgrade portakernel"
    assert [fault.reason for fault in manager.broken] == [f"{package.folder / 'backend.yaml'}:2: plugin_api: {text}"]


def test_who_names_a_refused_plugin_reads_the_same_sentence(site):
    registry = Registry(PluginManager([site.package("p", plugin=PLUGIN.format(3))]))
    with pytest.raises(UnknownNameError, match=r"p-dist 1.0\) is broken: .* plugin API 1 to 2: upgrade"):
        registry.named("p.add")


def test_at_run_time_nothing_else_of_a_manifest_for_another_version_is_judged(site):
    package = site.package("p", plugin=PLUGIN.format(3))
    with pytest.raises(PluginApiError) as caught:
        load_manifest(PluginManifest, package.folder / "plugin.yaml", strict=False)
    assert len(caught.value.problems) == 1


def test_strictly_another_version_hides_nothing(site):
    package = site.package("p", plugin=PLUGIN.format(3))
    with pytest.raises(PluginApiError) as caught:
        load_manifest(PluginManifest, package.folder / "plugin.yaml", strict=True)
    version, unknown = caught.value.problems
    assert version.startswith(f"{package.folder / 'plugin.yaml'}:3: plugin_api: is 3; ")
    assert unknown.startswith(f"{package.folder / 'plugin.yaml'}:4: keys_of_another_version: unknown key; ")


@pytest.mark.parametrize("model", [PluginManifest, BackendManifest])
def test_a_manifest_without_the_key_is_written_for_the_first_version(model):
    assert model.model_fields["plugin_api"].default == 1


@pytest.mark.parametrize("written", ["0", "'1'", "true", "1.0"])
def test_a_version_is_a_number_from_one(site, written):
    package = site.package("p", plugin=f"schema_version: 1\nplugin: p\nplugin_api: {written}\n")
    (fault,) = PluginManager([package]).broken
    assert fault.stage == "manifest"
    assert ":3: plugin_api: found " in fault.reason
