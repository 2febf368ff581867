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
            [
                ":6: kernels[0].targets.nvidea: unknown vendor 'nvidea'; did you mean 'nvidia'?",
                ":6: kernels[0].targets.amd: unknown amd arch 'gfx9'; ",
                ":7: kernels[0].priority: found 'high'; ",
            ],
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


def test_a_wrong_backend_does_not_make_its_vendor_unknown(run: Callable, package: Callable) -> None:
    folder = package(GOOD.replace("nvidia: sm_80+", "acme: any"), "schema_version: 1\nbackend: acme\nvendor: acme\n")
    ran = run("validate", str(folder))
    assert ran.out.splitlines()[1:] == ["2 manifests: 1 problem"]
    assert "backend.yaml:1: required key 'torch_device' is missing" in ran.out


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


POLICY = """\
schema_version: 1
reference: warn
ops:
  rms_norm: {reference: forbid, use: triton.rms_norm}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Callable[..., Path]:
    """Writes a policy file."""

    def write(text: str = POLICY, name: str = "policy.yaml") -> Path:
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return file

    return write


@pytest.mark.parametrize("name", ["policy.yaml", "production.yaml"])
def test_a_policy_file_is_known_by_its_name_or_its_keys(run: Callable, policy: Callable, name: str) -> None:
    file = policy(name=name)
    assert run("validate", str(file)).out == "1 policy file: no problems\n"
    data = run("validate", str(file), "--json").json
    assert data["checked"] == [{"file": str(file), "kind": "policy", "module": None, "problems": 0}]


def test_a_policys_problems_are_told_with_file_line_and_key(run: Callable, policy: Callable) -> None:
    file = policy(POLICY.replace("warn", "never").replace("triton.rms_norm", "triton.add, depy: x"))
    ran = run("validate", str(file))
    assert (ran.status, ran.err) == (1, "")
    assert ran.out.startswith(
        f"{file}:2: reference: found 'never'; known: allow, forbid, warn\n"
        f"{file}:4: ops.rms_norm.depy: unknown key; did you mean 'deny'?\n"
        f"{file}:4: ops.rms_norm.use: 'triton.add' has kernels of add, not of rms_norm; those are "
    )
    assert ran.out.endswith("\n1 policy file: 3 problems\n")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nvidia:h100:zzz", "ends with ':zzz', which means nothing; write 'nvidia:h100'"),
        ("sm90a", "unknown vendor 'sm90a'; did you mean 'nvidia:sm_90a'?"),
        ("amd:h100", "unknown amd arch 'h100'; it is nvidia:sm_90"),
        ("amd:h100+", "unknown amd arch 'h100+'; it is nvidia:sm_90"),
        ("nvidia:SM90a", None),
        ("amd:gfx942:xnack-", None),
    ],
)
def test_a_policys_targets_are_told_like_others(run: Callable, policy: Callable, target: str, told: str | None) -> None:
    file = policy(f"schema_version: 1\ntargets: {{{target!r}: {{deny: triton}}}}\n")
    found = run(f"validate {file} --json").json["problems"]
    assert [problem["text"] for problem in found] == ([told] if told else [])


def test_a_policys_problems_as_json(run: Callable, policy: Callable) -> None:
    file = policy(f"{POLICY}targets: {{nvidia:sm_9: {{deny: triton}}, 'amd:cdna9': {{deny: triton}}}}\n")
    ran = run("validate", str(file), "--json")
    assert ran.status == 1
    assert [(problem["line"], problem["key"]) for problem in ran.json["problems"]] == [
        (5, "targets.nvidia:sm_9"), (5, "targets.amd:cdna9"),
    ]  # fmt: skip
    assert [problem["text"].partition(";")[0] for problem in ran.json["problems"]] == [
        "unknown nvidia arch 'sm_9'", "unknown amd arch 'cdna9'",
    ]  # fmt: skip


def test_the_policy_file_in_force_is_checked_with_what_is_installed(
    run: Callable, policy: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = policy("schema_version: 1\ndeny: tritn\n", name="in_force.yaml")
    monkeypatch.setenv("PORTAKERNEL_POLICY", str(file))
    ran = run("validate")
    assert ran.status == 1
    first, count = ran.out.splitlines()
    assert first == f"{file}:2: deny: unknown kernel or plugin 'tritn'; did you mean 'triton' or 'triton.add'?"
    assert count.endswith("manifests, 1 policy file: 1 problem")
    monkeypatch.setenv("PORTAKERNEL_POLICY", str(file.parent / "none.yaml"))
    assert run("validate").out.startswith(f"{file.parent / 'none.yaml'}: cannot be read: No such file or directory\n")


def test_manifests_and_policies_may_be_named_together(run: Callable, package: Callable, policy: Callable) -> None:
    ran = run("validate", str(package()), str(policy()))
    assert (ran.status, ran.out) == (0, "1 manifest, 1 policy file: no problems\n")


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
        (
            "nothing",
            (
                "{path}: no such file or folder; name a plugin.yaml, a backend.yaml, their folder, their project's,"
                " or a policy.yaml"
            ),
        ),
        ("", "{path} holds neither plugin.yaml, backend.yaml nor pyproject.toml; name a folder that does"),
    ],
)
def test_a_path_without_a_manifest_is_bad_input(run: Callable, tmp_path: Path, name: str, message: str) -> None:
    path = tmp_path / name if name else tmp_path
    ran = run("validate", str(path))
    assert (ran.status, ran.out, ran.err) == (2, "", f"portakernel: {message.format(path=path)}\n")
