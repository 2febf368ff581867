"""``portakernel validate`` tells in one run what is wrong, however much it is: no fault hides another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

SOUND_PLUGIN: dict[str, Any] = {
    "schema_version": 1,
    "plugin": "acme",
    "defaults": {"targets": {"cpu": "any"}},
    "kernels": [
        {"op": "add", "entry": "acme.kernels:add", "dtypes": {"x": ["float32"], "y": ["x"]}},
        {"op": "rms_norm", "entry": "acme.kernels:rms_norm", "dtypes": {"x": ["float32"], "weight": ["x"]}},
        {"op": "softmax", "entry": "acme.kernels:softmax", "dtypes": {"x": ["float32"]}},
        {
            "op": "layer_norm",
            "entry": "acme.kernels:norm",
            "dtypes": {"x": ["float32"], "weight": ["x"], "bias": ["x"]},
        },
        {"op": "silu_and_mul", "entry": "acme.kernels:silu", "dtypes": {"x": ["float32"]}},
    ],
}
KERNELS = """\
def add(x, y, *, out=None): ...
def rms_norm(x, weight, *, eps, weight_offset=0.0, out=None): ...
def softmax(x, *, out=None): ...
def norm(x, weight, bias=None, *, eps, out=None): ...
def silu(x, *, out=None): ...
"""
# Each puts one fault into a sound manifest: of its form, of names, of entries, of claims.
PLUGIN_FAULTS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "unknown key": (("summry",), "x"),
    "specifier": (("requires",), {"modules": {"acme_rt": "=>2"}}),
    "vendor": (("defaults", "targets", "nvidai"), "any"),
    "no number": (("kernels", 0, "priority"), "high"),
    "dtype": (("kernels", 0, "dtypes", "y"), ["bfloat61"]),
    "no entry": (("kernels", 1, "entry"), "acme.kernels"),
    "limit of nothing": (("kernels", 1, "limits"), {"N": {"min": 9, "max": 3}}),
    "feature": (("kernels", 1, "features"), ["weight_ofset"]),
    "op": (("kernels", 2, "op"), "sofmax"),
    "unknown key of a kernel": (("kernels", 2, "colour"), "red"),
    "contradiction": (("kernels", 3, "saves"), "own"),
    "lost function": (("kernels", 3, "entry"), "acme.kernels:lost"),
    "dimension": (("kernels", 4, "limits"), {"Q": {"max": 3}}),
    "property": (("kernels", 4, "properties"), {"fast": True}),
    "arch": (("kernels", 4, "targets"), {"nvidia": "hoper"}),
    "ready": (("ready",), 3),
}
SOUND_BACKEND: dict[str, Any] = {
    "schema_version": 1,
    "backend": "acme",
    "vendor": "acme",
    "torch_device": "cpu",
    "lines": [["a1", "a2"]],
    "archs": {name: {"name": name, "source": "invented"} for name in ("a1", "a2")},
}
BACKEND_FAULTS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "unknown key": (("colour",), "red"),
    "taken": (("vendor",), "cpu"),
    "dtype": (("archs", "a1", "dtypes"), {"native": ["bfloat61"]}),
    "format": (("archs", "a2", "formats"), {"native": ["mxfp9"]}),
    "no number": (("archs", "a2", "warp_size"), "many"),
}
SOUND_POLICY: dict[str, Any] = {"schema_version": 1, "prefer": "torch", "targets": {"cpu": {"deny": ["torch.add"]}}}
POLICY_FAULTS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "unknown key": (("prefr",), "torch"),
    "kernel": (("deny",), ["nosuch"]),
    "mode": (("reference",), "maybe"),
    "property": (("require",), ["fast"]),
    "vendor": (("targets", "nvidai"), {"prefer": "torch"}),
    "kernel of a target": (("targets", "cpu", "use"), "nosuch.kernel"),
    "op": (("ops",), {"sofmax": {"prefer": "torch"}}),
}


def with_fault(data: dict[str, Any], fault: tuple[tuple[Any, ...], Any]) -> dict[str, Any]:
    made = copy.deepcopy(data)
    *path, last = fault[0]
    here: Any = made
    for part in path:
        here = here[part]
    here[last] = fault[1]
    return made


@pytest.mark.parametrize(
    ("name", "sound", "faults"),
    [
        ("plugin.yaml", SOUND_PLUGIN, PLUGIN_FAULTS),
        ("backend.yaml", SOUND_BACKEND, BACKEND_FAULTS),
        ("policy.yaml", SOUND_POLICY, POLICY_FAULTS),
    ],
)
def test_every_fault_is_told_among_all_others_as_it_is_alone(run: Callable, tmp_path: Path, name, sound, faults):
    folder = tmp_path / "acme"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "kernels.py").write_text(KERNELS)

    def told(data: dict[str, Any]) -> set[tuple[str, str]]:
        (folder / name).write_text(yaml.safe_dump(data, sort_keys=False))
        return {(p["key"], p["text"]) for p in run(f"validate {folder / name} --json").json["problems"]}

    assert told(sound) == set()
    everything = sound
    alone: set[tuple[str, str]] = set()
    for label, fault in faults.items():
        found = told(with_fault(sound, fault))
        assert found, label
        alone |= found
        everything = with_fault(everything, fault)
    together = told(everything)
    assert alone - together == set()
    assert together - alone == set()


def test_a_path_that_is_not_there_hides_nothing_of_the_others(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "plugin.yaml").write_text(yaml.safe_dump({**SOUND_PLUGIN, "summry": "x"}))
    (tmp_path / "policy.yaml").write_text("prefr: torch\n")
    ran = run(
        f"validate {tmp_path / 'nowhere'} {tmp_path / 'plugin.yaml'} {tmp_path / 'lost'} {tmp_path / 'policy.yaml'}"
    )
    assert ran.status == 1
    for said in (
        "nowhere: no such file or folder; ",
        "lost: no such file or folder; ",
        "summry: unknown key",
        "prefr: ",
    ):
        assert said in ran.out


def test_every_key_that_is_no_text_is_told(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "plugin.yaml").write_text("schema_version: 1\nplugin: acme\nfalse: 1\n7: 2\n")
    out = run(f"validate {tmp_path / 'plugin.yaml'}").out
    assert "plugin.yaml:3: the key False is not text for YAML; quote it" in out
    assert "plugin.yaml:4: the key 7 is not text for YAML; quote it" in out
