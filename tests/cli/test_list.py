"""``portakernel list``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from portakernel.registry.registry import Registry

MANIFEST = """\
schema_version: 1
plugin: acme
defaults: {targets: {nvidia: sm_90+}, dtypes: {x: [float16], y: [x]}}
kernels:
  - op: add
    entry: acme_for_cli_tests:add
    disabled: "too slow"
    priority: [{when: {M: {max: 64}}, priority: 70}, {priority: 50}]
    limits: {M: {min: 1}}
"""


def test_every_kernel_of_the_registry_is_listed_once(run: Callable) -> None:
    kernels = run("list --json").json["kernels"]
    assert sorted(kernel["kernel"] for kernel in kernels) == sorted(Registry().kernels)


def test_json_form_key_by_key(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest=MANIFEST)
    data = run("list --plugin acme --json").json
    assert list(data) == ["kernels"]
    assert data["kernels"] == [
        {
            "op": "add",
            "kernel": "acme.add",
            "plugin": "acme",
            "priority": [
                {"when": ["M <= 64"], "targets": None, "priority": 70},
                {"when": [], "targets": None, "priority": 50},
            ],
            "backward": False,
            "disabled": "too slow",
            "requires": {},
            "variants": [
                {
                    "name": None,
                    "targets": {"nvidia": "sm_90+"},
                    "dtypes": {"x": ["float16"], "y": ["x"]},
                    "formats": {},
                    "limits": ["M >= 1"],
                    "values": {},
                    "features": [],
                    "properties": [],
                }
            ],
            "source": {"distribution": "acme-kernels", "version": "1.2", "first_party": False},
        }
    ]


def test_each_row_names_its_kernel(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest=MANIFEST)
    assert run("list --op add --plugin acme").out == (
        "op   kernel              claims\n"
        "add  acme.add  targets   nvidia: sm_90+\n"
        "add  acme.add  dtypes    x: float16; y: x\n"
        "add  acme.add  priority  70 where M <= 64, 50\n"
        "add  acme.add  disabled  too slow\n"
        "add  acme.add  source    acme-kernels 1.2, third-party\n"
    )


def test_references_come_last_of_their_op(run: Callable) -> None:
    kernels = [kernel["kernel"] for kernel in run("list --op rms_norm --json").json["kernels"]]
    assert kernels[-1] == "reference.rms_norm"


def test_broken_packages_are_named_on_stderr(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest="schema_version: 1\nplugin: other\n")
    assert run("list").err == "left out, being broken: acme; `portakernel doctor` says why\n"
    ran = run("list --plugin acme")
    assert ran.status == 2
    assert ran.err.endswith("acme is broken: run `portakernel doctor`.\n")
