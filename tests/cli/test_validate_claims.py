"""``portakernel validate`` of what only shows when claims, sources and names are looked at together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HEAD = "schema_version: 1\nplugin: acme\nkernels:\n"
ADD = "  - {op: add, entry: 'acme.kernels:add', targets: {nvidia: sm_80+}, dtypes: {x: [float16], y: [x]}"
NORM = "  - {op: rms_norm, entry: 'acme.kernels:norm', targets: {nvidia: sm_80+}"
SOURCE = "def add(x, y, *, out=None): ...\n\n\ndef norm(x, weight, *, eps, out=None): ...\n"


@pytest.fixture
def acme(tmp_path: Path, run: Callable) -> Callable[..., list[str]]:
    """The problems of a package ``acme`` with these kernels, without the folder in them."""

    def validate(*kernels: str, source: str = SOURCE, options: tuple[str, ...] = ()) -> list[str]:
        folder = tmp_path / "acme"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("", encoding="utf-8")
        (folder / "kernels.py").write_text(source, encoding="utf-8")
        (folder / "plugin.yaml").write_text(HEAD + "".join(f"{k}}}\n" for k in kernels), encoding="utf-8")
        ran = run("validate", str(folder), *options)
        *lines, _ = ran.out.replace(f"{folder}/", "").replace(str(folder), "acme").splitlines()
        assert ran.status == bool(lines)
        return lines

    return validate


# --- claims that can never match -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "problem"),
    [
        ("targets: {nvidia: {in: [hopper], not: [sm_90]}}", "targets.nvidia: can never match: hopper except sm_90 is"),
        ("limits: {M: {min: 10, max: 20, multiple_of: 32}}", "limits.M: can never match: nothing is >= 10 and <= 20 a"),
        ("limits: {M: {max: -1}}", "limits.M: can never match: nothing is <= -1; widen or remove the limit"),
        ("limits: {M: {in: [3, 5], multiple_of: 2}}", "limits.M: can never match: nothing is a multiple of 2 and in 3"),
        ("limits: {M: {min: 5, max: 7, power_of_two: true}}", "limits.M: can never match: nothing is >= 5 and <= 7 an"),
        ("limits: {x.alignment: {min: 32}}", "limits.x.alignment: can never match: nothing is >= 32 (alignment is 1,"),
        ("limits: {x.contiguous: {in: [2]}}", "limits.x.contiguous: can never match: nothing is = 2 (contiguous is tr"),
    ],
)  # fmt: skip
def test_a_claim_that_no_call_matches_is_told(acme: Callable, claim: str, problem: str) -> None:
    key = claim.partition(":")[0]
    kernel = ADD.replace("targets: {nvidia: sm_80+}, ", "") if key == "targets" else ADD
    (found,) = acme(f"{kernel}, {claim}")
    assert found.startswith(f"plugin.yaml:4: kernels[0].{problem}")


def test_dtypes_that_the_op_does_not_take_together_are_told(acme: Callable) -> None:
    claim = f"{NORM}, dtypes: {{x: [float32, float16], weight: [bfloat16, float32]}}"
    assert acme(claim) == [
        (
            "plugin.yaml:4: kernels[0].dtypes.weight: can never match: rms_norm takes weight in bfloat16 with none"
            " of the"
            " other arguments' dtypes here; claim those that go with it, or leave bfloat16 out"
        ),
    ]


def test_a_variant_behind_one_that_takes_all_of_it_is_told(acme: Callable) -> None:
    variants = (
        "variants: [{name: any_size}, {name: small, limits: {M: {max: 64}}}, {name: exact, limits: {M: {in: [8]}}}]"
    )
    text = "can never match: any_size (variants[0]) comes first and takes all that this one does"
    found = acme(f"{ADD}, {variants}")
    assert [line.partition("; ")[0] for line in found] == [
        f"plugin.yaml:4: kernels[0].variants[1]: {text}", f"plugin.yaml:4: kernels[0].variants[2]: {text}"
    ]  # fmt: skip
    promising = variants.replace("name: small", "name: small, properties: {deterministic: true}")
    assert len(acme(f"{ADD}, {promising}")) == 1  # a call that requires it matches the second alone


def test_rules_of_a_priority_that_never_apply_are_told(acme: Callable) -> None:
    bounds = ("max: 64", "max: 8", "min: 999")
    rules = f"[{', '.join(f'{{when: {{M: {{{bound}}}}}, priority: {i}}}' for i, bound in enumerate(bounds))}]"
    assert acme(f"{ADD}, limits: {{M: {{max: 512}}}}, priority: {rules}") == [
        (
            "plugin.yaml:4: kernels[0].priority[1]: can never match: priority[0] comes first and holds whenever"
            " this does;"
            " put it first"
        ),
        (
            "plugin.yaml:4: kernels[0].priority[2]: can never match: M >= 999 lies outside the kernel's own claims;"
            " remove"
            " the rule"
        ),
    ]


def test_a_rule_for_a_feature_that_the_kernel_lacks_is_told(acme: Callable) -> None:
    text = "kernels[0].priority[0]: can never match: weight_offset is asked for lies outside the kernel's own claims"
    rules = "priority: [{features: [weight_offset], priority: 2}, {priority: 1}]"
    assert any(text in found for found in acme(f"{NORM}, {rules}"))
    assert not any(text in found for found in acme(f"{NORM}, features: [weight_offset], {rules}"))


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("[relu]", "[gelu]", None),
        ("[relu]", "[relu, gelu]", None),
        ("[relu, gelu]", "[gelu]", "priority[1]: can never match: priority[0] comes first"),
        ("[relu]", "[none]", "priority[1]: can never match: activation is 'none' lies outside the kernel's own claims"),
    ],
)
def test_values_of_a_priority_are_those_of_the_claims(
    acme: Callable, first: str, second: str, problem: str | None
) -> None:
    rules = (f"{{values: {{activation: {values}}}, priority: {n}}}" for n, values in enumerate((first, second)))
    linear = (
        "  - {op: linear_act, entry: 'acme.kernels:linear', targets: {nvidia: sm_80+}"
        ", dtypes: {x: [float16], weight: [x], bias: [x]}, values: {activation: [relu, gelu]}"
        f", priority: [{', '.join(rules)}]"
    )
    found = acme(linear, source="def linear(x, weight, bias=None, *, activation, out=None): ...\n")
    assert [problem is not None and problem in line for line in found] == [True] * (problem is not None)


@pytest.mark.parametrize(
    ("targets", "problems"),
    [
        ("nvidia: sm_90", []),
        ("nvida: sm_90", ["targets.nvida: unknown vendor 'nvida'; did you mean 'nvidia'?", "targets: can never match"]),
        ("nvidia: sm_990+", ["targets.nvidia: nvidia arch 'sm_990' is not listed", "targets: can never match"]),
        ("nvidia: {in: [sm_90], not: [sm_90]}", ["targets: can never match: none of its targets is one that the"]),
        ("nvidia: sm_75", ["targets: can never match: none of its targets is one that the kernel serves;"]),
        ("intel: any", ["targets: can never match: none of its targets is one that the kernel serves; name some"]),
    ],
)
def test_targets_of_a_priority_are_those_of_the_kernel(acme: Callable, targets: str, problems: list[str]) -> None:
    found = acme(f"{ADD}, priority: [{{targets: {{{targets}}}, priority: 9}}, {{priority: 1}}]")
    assert len(found) == len(problems)
    for text in problems:
        assert any(f"kernels[0].priority[0].{text}" in line for line in found), (text, found)


# --- claims that overlap ---------------------------------------------------------------------------------------------


def second(more: str = "") -> str:
    return f"{ADD.replace('op: add,', 'op: add, name: other,')}{more}"


def test_kernels_between_which_only_names_decide_are_told(acme: Callable) -> None:
    assert acme(ADD, second()) == [
        (
            "plugin.yaml:5: kernels[1]: overlaps with kernels[0], acme.add: both take some calls of add with equal"
            " priority,"
            " so that their names decide; give them different ones, or narrow one's claims"
        ),
    ]


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("", ", priority: 5"),
        (", limits: {M: {max: 64}}", ", limits: {M: {min: 65}}"),
        (", limits: {x.contiguous: {in: [true]}}", ", limits: {x.contiguous: {in: [false]}}"),
        ("", ", disabled: not yet"),
    ],
)
def test_kernels_that_no_call_has_to_choose_between_are_well(acme: Callable, first: str, other: str) -> None:
    assert acme(ADD + first, second(other)) == []


@pytest.mark.parametrize("change", [("float16", "bfloat16"), ("sm_80+", "sm_75")])
def test_kernels_for_other_dtypes_or_architectures_do_not_overlap(acme: Callable, change: tuple[str, str]) -> None:
    assert acme(ADD, second().replace(*change)) == []


# --- entries ---------------------------------------------------------------------------------------------------------


def test_a_source_that_is_no_python_is_told_with_its_line(acme: Callable) -> None:
    source = "import math\n\ndef add(x, y, *, out=None:\n    ...\n"
    (found,) = acme(ADD, source=source)
    assert found.startswith("kernels.py:3: is not Python, so that it cannot be imported: ")


def test_an_import_of_what_the_package_lacks_is_told_with_its_line(acme: Callable) -> None:
    source = f"from acme.launch import run\nimport acme\n\n{SOURCE}"
    assert acme(ADD, source=source) == ["kernels.py:1: imports 'acme.launch', which the package does not have"]


@pytest.mark.parametrize(
    ("definition", "lacks"),
    [
        ("def add(x, y): ...", "out"),
        ("def add(x, *, out=None): ...", "y"),
        ("def add(*tensors): ...", "out"),
        ("def add(*, out): ...", "x, y"),
    ],
)
def test_a_function_that_cannot_be_called_as_kernels_are_is_told(acme: Callable, definition: str, lacks: str) -> None:
    assert acme(ADD, source=f"{definition}\n") == [
        (
            f"plugin.yaml:4: kernels[0].entry: acme.kernels.add does not take {lacks}; a kernel takes what its op does:"
            " add(x, y, *, out=None, kernel=None)"
        ),
    ]


@pytest.mark.parametrize(
    "definition",
    [
        "def add(*tensors, **rest): ...",
        "@decorated\ndef add(): ...",
        "add = make()",
        "if True:\n    def add(x, y, *, out): ...\nelse:\n    add = None",
        "from elsewhere import add",
        "def add(x, y, *, out=None, save=False, **options): ...",
    ],
)
def test_a_function_that_may_be_called_so_is_well(acme: Callable, definition: str) -> None:
    assert acme(ADD, source=f"{definition}\n") == []


def test_a_value_that_every_kernel_honours_must_be_taken(acme: Callable) -> None:
    dtypes = "dtypes: {x: [float32], weight: [x]}"
    (found,) = acme(f"{NORM}, {dtypes}", source="def norm(x, weight, *, out=None): ...\n")
    assert "acme.kernels.norm does not take eps; a kernel takes what its op does: rms_norm(x, weight, *, eps=" in found
    (found,) = acme(f"{NORM}, {dtypes}, features: [weight_offset]")
    assert "does not take weight_offset;" in found


# --- importing, where it is asked for --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import no_such_library\n", "kernels.py:1: importing acme.kernels:add raised ModuleNotFoundError: No module"),
        ("\n1 / 0\n", "kernels.py:2: importing acme.kernels:add raised ZeroDivisionError: division by zero; import wh"),
        ("raise SystemExit('unsupported')\n", "kernels.py:1: importing acme.kernels:add raised SystemExit: unsupporte"),
        ("import os\nos._exit(7)\n", "acme: importing acme.kernels:add ended its process with status 7; a module must"),
        ("print('portakernel')\nadd = 3\n", "acme: importing acme.kernels:add raised TypeError: acme.kernels:add is a"),
    ],
)  # fmt: skip
def test_an_entry_that_does_not_import_is_told_where_it_fails(acme: Callable, source: str, problem: str) -> None:
    source += "" if "add =" in source else "def add(x, y, *, out=None): ...\n"
    assert acme(ADD, source=source) == []  # nothing is imported unless it is asked for
    (found,) = acme(ADD, source=source, options=("--imports",))
    assert found.startswith(problem)
    assert "acme.kernels" not in sys.modules


def test_an_import_that_hangs_is_ended(acme: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    from portakernel_kit.cli.validate import entry_imports

    monkeypatch.setattr(entry_imports.import_problems, "__defaults__", (1.0,))
    source = f"import threading\nthreading.Event().wait()\n{SOURCE}"
    (found,) = acme(ADD, source=source, options=("--imports",))
    assert found == ("acme: importing acme.kernels:add takes longer than 1 s; do at the first call what takes so long")


# --- a project -------------------------------------------------------------------------------------------------------

PROJECT = """\
[project]
name = "acme-kernels"
version = "1.0"

[project.entry-points.portakernel]
acme = "acme"
"""


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = PROJECT, *, manifest: str = f"{HEAD}{ADD}}}\n", source: str = SOURCE) -> Path:
        folder = tmp_path / "src" / "acme"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("", encoding="utf-8")
        (folder / "kernels.py").write_text(source, encoding="utf-8")
        (folder / "plugin.yaml").write_text(manifest, encoding="utf-8")
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def test_a_projects_folder_leads_to_its_manifests(run: Callable, project: Callable) -> None:
    ran = run("validate", str(project()), "--json")
    assert ran.status == 0
    assert [(checked["kind"], checked["module"]) for checked in ran.json["checked"]] == [("plugin", "acme")]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("[project.e", "[project.x"), "pyproject.toml: project.entry-points.portakernel: registers nothing with port"),
        (('acme = "acme"', 'acme = "acme.inner"'), "pyproject.toml:6: project.entry-points.portakernel.acme: there is"),
        (('acme = "', 'other = "'), "src/acme/plugin.yaml:2: plugin: is 'acme', but the entry point of acme-kernels i"),
        (('acme = "', 'torch = "'), "pyproject.toml: project.entry-points.portakernel.torch: the name 'torch' is take"),
        (("[project]", "[project"), "pyproject.toml:1: cannot be read: "),
    ],
)  # fmt: skip
def test_a_projects_names_are_checked(run: Callable, project: Callable, change: tuple[str, str], problem: str) -> None:
    folder = project(PROJECT.replace(*change))
    ran = run("validate", str(folder))
    assert ran.status == 1
    assert ran.out.replace(f"{folder}/", "").startswith(problem)


def test_everything_that_is_wrong_is_told_in_one_run(run: Callable, project: Callable) -> None:
    kernels = [
        f"{ADD}}}",
        f"{second().replace('sm_80+', 'sm_81x')}}}",
        f"{second(', limits: {M: {max: -1}}').replace('other', 'third')}}}",
        "  - {op: ad, entry: 'acme.kernels:add'}",
        f"{second().replace('other', 'fifth').replace(':add', ':ad').replace('nvidia', 'nvidea')}}}",
    ]
    manifest = HEAD + "\n".join([*kernels, ""])
    folder = project(f"{PROJECT}gone = 'acme_gone'\n", manifest=manifest, source=f"import acme.launch\n{SOURCE}")
    problems = run("validate", str(folder), "--json").json["problems"]
    told = [(Path(problem["file"]).name, problem["line"], problem["key"]) for problem in problems]
    assert sorted(told, key=str) == sorted(
        [
            ("pyproject.toml", 7, "project.entry-points.portakernel.gone"),
            ("plugin.yaml", 5, "kernels[1].targets.nvidia"),
            ("plugin.yaml", 6, "kernels[2].limits.M"),
            ("plugin.yaml", 7, "kernels[3].op"),
            ("plugin.yaml", 8, "kernels[4].targets.nvidea"),
            ("plugin.yaml", 8, "kernels[4].entry"),
            ("kernels.py", 1, None),
        ],
        key=str,
    )
