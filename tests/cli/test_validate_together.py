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
        {"op": "add", "name": "other", "entry": "acme.kernels:add", "dtypes": {"x": ["float16"], "y": ["x"]}},
        {"op": "gelu_and_mul", "entry": "acme.kernels:gelu", "dtypes": {"x": ["float32"]}},
    ],
}
KERNELS = """\
def add(x, y, *, out=None): ...
def rms_norm(x, weight, *, eps, weight_offset=0.0, out=None): ...
def softmax(x, *, out=None): ...
def norm(x, weight, bias=None, *, eps, out=None): ...
def silu(x, *, out=None): ...
def gelu(x, *, approximate="none", out=None): ...
def few(x): ...
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
    "schema": (("schema_version",), 9),
    "api": (("plugin_api",), 7),
    "arch of an unknown op": (("kernels", 5, "targets"), {"nvidia": ["hoper"], "amd": "gfx9"}),
    "dtype of an unknown op": (("kernels", 5, "dtypes"), {"x": ["bfloat61"], "y": ["x"]}),
    "entry of an unknown op": (("kernels", 5, "check"), {"entry": "other.kernels:check", "reads": ["M"]}),
    "unlisted archs": (
        ("kernels", 6, "targets"),
        {"amd": ["cdna3", "gfx9999"], "apple": {"in": "any", "not": ["m9"]}},
    ),
    "function that takes too little": (("kernels", 6, "entry"), "acme.kernels:few"),
    "limit of no value": (("kernels", 6, "limits"), {"x.alignment": {"min": 32}}),
    "dtype beside them": (("kernels", 6, "dtypes", "x"), ["bfloat61"]),
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


# What the faults of an unknown op's kernel are told beside.
PLUGIN_FAULTS["unknown op"] = (("kernels", 5, "op"), "ad")


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


def test_every_term_that_is_no_architecture_is_told_at_its_place(run: Callable, tmp_path: Path) -> None:
    kernel = {
        "op": "add",
        "entry": "acme:add",
        "dtypes": {"x": ["float32"], "y": ["x"]},
        "targets": {
            "nvidia": ["hoper", "sm_80+", "sm_8x..sm_9x"],
            "amd": ["cdna3", "gfx9999"],
            "apple": {"in": ["m1", "m99+"], "not": ["q1"]},
            "cpu": ["sparc"],
        },
    }
    file = tmp_path / "acme" / "plugin.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump({"schema_version": 1, "plugin": "acme", "kernels": [kernel]}, sort_keys=False))
    told = {p["key"]: p["text"] for p in run(f"validate {file} --json").json["problems"]}
    here = "kernels[0].targets"
    assert [key.removeprefix(here) for key in told] == [
        ".nvidia[0]", ".nvidia[2]", ".amd[1]", ".apple.in[1]", ".apple.not[0]",
    ]  # fmt: skip
    assert told[f"{here}.nvidia[0]"] == "unknown nvidia arch 'hoper'; did you mean 'hopper'?"
    assert told[f"{here}.amd[1]"] == (
        "amd arch 'gfx9999' is not listed, and is taken for one that comes after gfx1250; correct it, or write"
        " 'gfx1250+' for all that come after"
    )
    both = run(f"validate {file}").out.splitlines()
    assert [line.partition("unknown ")[2] for line in both if ".nvidia[2]" in line] == [
        "nvidia arch 'sm_8x'; did you mean 'sm_89' or 'sm_87' or 'sm_86'?",
        "nvidia arch 'sm_9x'; did you mean 'sm_90' or 'sm_89' or 'sm_87'?",
    ]


def test_what_is_told_is_in_the_order_of_files_and_lines(run: Callable, tmp_path: Path) -> None:
    faulty = with_fault(with_fault(SOUND_PLUGIN, PLUGIN_FAULTS["property"]), PLUGIN_FAULTS["dtype"])
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plugin.yaml").write_text(yaml.safe_dump({**faulty, "colour": 1}, sort_keys=False))
    (tmp_path / "a" / "policy.yaml").write_text("prefr: torch\ndeny: nosuch\n")
    ran = run(f"validate {tmp_path / 'b'} {tmp_path / 'a' / 'policy.yaml'} {tmp_path / 'a'} --json")
    places = [(p["file"], p["line"]) for p in ran.json["problems"]]
    assert len({file for file, _ in places}) == 3
    assert places == sorted(places)


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
