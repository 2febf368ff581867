"""``portakernel validate``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """\
schema_version: 1
plugin: acme
kernels:
  - op: add
    entry: acme.kernels:add
    targets: {nvidia: sm_80+}
    dtypes: {x: [float16], y: [x]}
"""


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    """Writes a package ``acme`` with this manifest; returns its folder."""

    def write(plugin: str | None = GOOD, backend: str | None = None) -> Path:
        folder = tmp_path / "acme"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("raise RuntimeError('validate imports nothing')\n", encoding="utf-8")
        (folder / "kernels.py").write_text("def add(x, y, *, out=None): ...\n", encoding="utf-8")
        for name, text in (("plugin.yaml", plugin), ("backend.yaml", backend)):
            if text is not None:
                (folder / name).write_text(text, encoding="utf-8")
        return folder

    return write


def test_what_is_installed_is_valid(run: Callable) -> None:
    ran = run("validate --json")
    assert ran.status == 0, ran.out
    assert ran.json["ok"] is True
    assert ran.json["problems"] == []


def test_a_good_package_outside_the_installed_ones_is_valid_and_not_imported(run: Callable, package: Callable) -> None:
    ran = run("validate", str(package()))
    assert (ran.status, ran.out) == (0, "1 manifest: no problems\n")
    assert "acme" not in sys.modules


def test_a_folder_and_its_file_are_one_manifest(run: Callable, package: Callable) -> None:
    folder = package()
    assert run("validate", str(folder), str(folder / "plugin.yaml")).out == "1 manifest: no problems\n"


def test_json_form_key_by_key(run: Callable, package: Callable) -> None:
    folder = package(GOOD.replace("nvidia", "nvidea"))
    ran = run("validate", str(folder), "--json")
    data = ran.json
    assert ran.status == 1
    assert list(data) == ["ok", "checked", "problems"]
    assert data["ok"] is False
    file = str(folder / "plugin.yaml")
    assert data["checked"] == [{"file": file, "kind": "plugin", "module": "acme", "problems": 1}]
    assert data["problems"] == [
        {
            "file": file,
            "line": 6,
            "key": "kernels[0].targets.nvidea",
            "text": "unknown vendor 'nvidea'; did you mean 'nvidia'?",
        }
    ]


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        (("sm_80+", "sm_80x"), [":6: kernels[0].targets.nvidia: "]),
        (("op: add", "op: ad"), [":4: kernels[0].op: unknown op 'ad'; did you mean 'add'?"]),
        (
            ("[float16]", "[half]"),
            [":7: kernels[0].dtypes.x[0]: unknown dtype 'half'; "],
        ),
        (
            ("entry: acme.", "entry: other."),
            [":5: kernels[0].entry: 'other.kernels:add' is outside the plugin's own package 'acme'"],
        ),
        (("acme.kernels:add", "acme.kernel:add"), [":5: kernels[0].entry: there is no module 'acme.kernel'"]),
        (
            ("acme.kernels:add", "acme.kernels:ad"),
            [":5: kernels[0].entry: acme.kernels has no function 'ad'; did you mean 'add'?"],
        ),
        (("plugin: acme", "plugin: acme\nplugin: acme"), [":3: key 'plugin' is a duplicate of the one in line 2"]),
        (("plugin: acme", "plugin: acme\nsumary: x"), [":3: sumary: unknown key; did you mean 'summary'?"]),
        (
            ("schema_version: 1", "schema_version: 2"),
            [":1: schema_version: is 2; this portakernel knows versions up to 1"],
        ),
        (
            ("plugin: acme", "plugin: reference"),
            [":2: plugin: the name 'reference' is taken by portakernel's own references"],
        ),
        (
            ("{nvidia: sm_80+}", "{nvidea: sm_80+, amd: gfx9}\n    priority: high"),
            [":7: kernels[0].priority: found 'high'; "],
        ),
    ],
)
def test_each_problem_is_told_with_its_place(
    run: Callable, package: Callable, change: tuple[str, str], problems: list[str]
) -> None:
    folder = package(GOOD.replace(*change))
    ran = run("validate", str(folder))
    *lines, count = ran.out.splitlines()
    assert ran.status == 1
    assert count == f"1 manifest: {len(problems)} problem{'s' * (len(problems) != 1)}"
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"{folder / 'plugin.yaml'}{problem}")


def test_problems_that_do_not_hide_each_other_are_told_at_once(run: Callable, package: Callable) -> None:
    text = (
        GOOD.replace("nvidia: sm_80+", "nvidea: sm_80+, amd: gfx9").replace("y: [x]", "z: [x]").replace(":add", ":ad")
    )
    keys_at_fault = {problem["key"] for problem in run("validate", str(package(text)), "--json").json["problems"]}
    assert keys_at_fault == {
        "kernels[0].targets.nvidea", "kernels[0].targets.amd", "kernels[0].dtypes", "kernels[0].dtypes.z",
        "kernels[0].entry",
    }  # fmt: skip


def test_a_vendor_of_the_same_package_is_known(run: Callable, package: Callable) -> None:
    backend = "schema_version: 1\nbackend: acme\nvendor: acme\ntorch_device: npu\nopen_ended: true\n"
    folder = package(GOOD.replace("nvidia: sm_80+", "acme: any"), backend)
    assert run("validate", str(folder)).out == "2 manifests: no problems\n"
    assert run("validate", str(folder / "plugin.yaml")).status == 1


def test_a_backend_cannot_take_an_installed_ones_vendor(run: Callable, package: Callable) -> None:
    folder = package(None, "schema_version: 1\nbackend: acme\nvendor: nvidia\ntorch_device: npu\nopen_ended: true\n")
    ran = run("validate", str(folder))
    assert ran.status == 1
    assert ran.out.startswith(
        f"{folder / 'backend.yaml'}:3: vendor: vendor 'nvidia' is taken by backend nvidia (portakernel "
    )


def test_a_file_under_another_name_is_known_by_its_keys(run: Callable, tmp_path: Path) -> None:
    file = tmp_path / "draft.yaml"
    file.write_text("schema_version: 1\nbackend: acme\nvendor: acme\n", encoding="utf-8")
    ran = run("validate", str(file))
    assert ran.out.splitlines()[0] == f"{file}:1: required key 'torch_device' is missing"


def test_a_nested_package_is_named_from_its_outermost_init(run: Callable, tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").touch()
    (inner / "plugin.yaml").write_text(GOOD.replace("acme.kernels:add", "outer.inner:add"), encoding="utf-8")
    (inner / "__init__.py").write_text("from outer.code import add\n", encoding="utf-8")
    assert run("validate", str(inner), "--json").json["checked"][0]["module"] == "outer.inner"
    assert run("validate", str(inner)).status == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "{path}: no such file or folder; name a plugin.yaml, a backend.yaml or their folder"),
        ("", "{path} holds neither plugin.yaml nor backend.yaml; name the folder that does"),
    ],
)
def test_a_path_without_a_manifest_is_bad_input(run: Callable, tmp_path: Path, name: str, message: str) -> None:
    path = tmp_path / name if name else tmp_path
    ran = run("validate", str(path))
    assert (ran.status, ran.out, ran.err) == (2, "", f"portakernel: {message.format(path=path)}\n")
