"""Manifests as models: what is accepted, and what an error says about what is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from portakernel.errors import ManifestError, ManifestWarning
from portakernel.manifest.loading import Loaded, load_manifest
from portakernel.manifest.models import BackendManifest, PluginManifest

Load = Callable[..., Loaded]

PLUGIN = """\
schema_version: 1
plugin: acme
kernels:
  - op: add
    entry: acme:add
    targets: {nvidia: sm_80+}
    dtypes: {x: [float32], y: [x]}
"""
BACKEND = """\
schema_version: 1
backend: acme
vendor: acme
torch_device: acme
lines: [[a1, a2]]
families: {all: [a1, a2]}
archs:
  a1: {name: One, source: invented}
  a2: {name: Two, source: invented}
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str, *, model=PluginManifest, strict: bool = True) -> Loaded:
        path = tmp_path / "manifest.yaml"
        path.write_text(text, encoding="utf-8")
        return load_manifest(model, path, strict=strict, shown_as="m.yaml")

    return load


def problems(load: Load, text: str, **how) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load(text, **how)
    assert caught.value.path == "m.yaml"
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def test_the_smallest_plugin_is_read(load):
    manifest = load(PLUGIN).manifest
    assert (manifest.plugin, manifest.hooks, manifest.ready, manifest.requires.modules) == ("acme", [], None, {})
    kernel = manifest.kernels[0]
    assert (kernel.op, kernel.name, kernel.entry, kernel.backward) == ("add", None, "acme:add", None)
    assert (kernel.targets, kernel.dtypes) == ({"nvidia": "sm_80+"}, {"x": ["float32"], "y": ["x"]})


def test_every_key_is_read(load):
    manifest = load("""\
schema_version: 1
plugin: acme
summary: words
hooks: [portakernel_decided]
requires: {modules: {torch: ">=2.11", yaml: ""}}
ready: acme.probe:ready
modes:
  slow: {context: acme:slow, torch_device: cpu, allowance_ulp: {bfloat16: 1}, max_elements: 10}
defaults: {priority: 7, features: [weight_offset]}
kernels:
  - op: rms_norm
    name: fast
    entry: acme.norm:run
    backward: acme.norm:back
    saves: own
    forward_ad: true
    targets: {nvidia: {in: sm_80+, not: [sm_86]}, amd: [cdna3]}
    dtypes: {x: [float32], weight: [x]}
    formats: {x: [row]}
    limits: {N: {min: 1, max: 4, multiple_of: 2, in: [2, 4], power_of_two: true}, x.contiguous: {in: [true]}}
    properties: {deterministic: true, inplace: false}
    prebuilt: true
    check: {entry: acme:check, reads: [N]}
    priority: [{when: {M: {max: 64}}, priority: 70}, {priority: 50}]
    disabled: broken on Tuesdays
""").manifest
    kernel = manifest.kernels[0]
    assert manifest.requires.modules == {"torch": ">=2.11", "yaml": ""}
    assert manifest.modes["slow"].allowance_ulp == {"bfloat16": 1.0}
    assert (manifest.defaults.priority, manifest.defaults.features) == (7, ["weight_offset"])
    assert (kernel.targets["nvidia"].include, kernel.targets["nvidia"].exclude) == ("sm_80+", ["sm_86"])
    assert str(kernel.limits["N"].limit("N")) == "N >= 1 and <= 4 and a multiple of 2 and in 2, 4 and a power of two"
    assert str(kernel.limits["x.contiguous"].limit("x.contiguous")) == "x.contiguous = true"
    assert [rule.priority for rule in kernel.priority] == [70, 50]
    assert (kernel.saves, kernel.forward_ad, kernel.prebuilt, kernel.disabled) == (
        "own",
        True,
        True,
        "broken on Tuesdays",
    )


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("plugin: acme", "plugin: acme\nsumary: x", "m.yaml:3: sumary: unknown key; did you mean 'summary'?"),
        (
            "    entry: acme:add",
            "    entri: acme:add",
            "m.yaml:5: kernels[0].entri: unknown key; did you mean 'entry'?",
        ),
        (
            "    dtypes:",
            "    limits: {M: {maks: 3}}\n    dtypes:",
            "m.yaml:7: kernels[0].limits.M.maks: unknown key; known: in, max, min, multiple_of, power_of_two",
        ),
        (
            "kernels:",
            "defaults:\n  propertys: {deterministic: true}\nkernels:",
            "m.yaml:4: defaults.propertys: unknown key; did you mean 'properties' or 'priority'?",
        ),
        (
            "kernels:",
            "requires: {module: {torch: '>=2'}}\nkernels:",
            "m.yaml:3: requires.module: unknown key; did you mean 'modules'?",
        ),
        (
            "    dtypes:",
            "    check: {entry: acme:check, read: [M], reads: [M]}\n    dtypes:",
            "m.yaml:7: kernels[0].check.read: unknown key; did you mean 'reads'?",
        ),
        (
            "    dtypes:",
            "    variants:\n      - {dtype: {x: [float32]}}\n    dtypes:",
            "m.yaml:8: kernels[0].variants[0].dtype: unknown key; did you mean 'dtypes'?",
        ),
        (
            "    dtypes:",
            "    priority:\n      - {wen: {M: {max: 3}}, priority: 3}\n    dtypes:",
            "m.yaml:8: kernels[0].priority[0].wen: unknown key; did you mean 'when'?",
        ),
        (
            "kernels:",
            "modes:\n  slow: {context: acme:slow, torch_devise: cpu, torch_device: cpu}\nkernels:",
            "m.yaml:4: modes.slow.torch_devise: unknown key; did you mean 'torch_device'?",
        ),
    ],
)
def test_an_unknown_key_is_named_with_line_path_and_the_nearest(load, old, new, problem):
    assert problem in problems(load, PLUGIN.replace(old, new, 1))


@pytest.mark.parametrize("key", ["one_of", "include", "exclude"])
def test_a_key_has_one_name(load, key):
    """The names of the fields behind `in` and `not` are no keys: the schemas and the docs do not have them."""
    text = {
        "one_of": PLUGIN.replace("    dtypes:", "    limits: {M: {one_of: [3]}}\n    dtypes:"),
        "include": PLUGIN.replace("sm_80+", "{include: sm_80+}"),
        "exclude": PLUGIN.replace("sm_80+", "{in: sm_80+, exclude: [sm_86]}"),
    }[key]
    assert any(f"{key}: unknown key; " in problem for problem in problems(load, text))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("plugin: acme", "plugin: [acme]", "m.yaml:2: plugin: found ['acme']; input should be a valid string"),
        (
            "schema_version: 1",
            "schema_version: '1'",
            "m.yaml:1: schema_version: found '1'; input should be a valid integer",
        ),
        (
            "schema_version: 1",
            "schema_version: true",
            "m.yaml:1: schema_version: found True; input should be a valid integer",
        ),
        (
            "{x: [float32], y: [x]}",
            "{x: float32, y: [x]}",
            "m.yaml:7: kernels[0].dtypes.x: found 'float32'; input should be a valid list",
        ),
        (
            "{x: [float32], y: [x]}",
            "[float32]",
            "m.yaml:7: kernels[0].dtypes: found ['float32']; input should be a mapping of keys",
        ),
        (
            "    dtypes:",
            "    priority: high\n    dtypes:",
            (
                "m.yaml:7: kernels[0].priority: found 'high'; input should be a valid integer; or found 'high';"
                " input should be a valid list"
            ),
        ),
        (
            "    dtypes:",
            "    limits: {M: {max: 1e3}}\n    dtypes:",
            "m.yaml:7: kernels[0].limits.M.max: found '1e3'; input should be a valid integer",
        ),
        (
            "    dtypes:",
            "    limits: {M: {multiple_of: 0}}\n    dtypes:",
            "m.yaml:7: kernels[0].limits.M.multiple_of: found 0; input should be greater than 0",
        ),
        (
            "    dtypes:",
            "    properties: {deterministic: 'yes'}\n    dtypes:",
            "m.yaml:7: kernels[0].properties.deterministic: found 'yes'; input should be a valid boolean",
        ),
        (
            "    dtypes:",
            "    forward_ad: 1\n    dtypes:",
            "m.yaml:7: kernels[0].forward_ad: found 1; input should be a valid boolean",
        ),
        (
            "    dtypes:",
            "    disabled: ''\n    dtypes:",
            "m.yaml:7: kernels[0].disabled: found ''; string should have at least 1 character",
        ),
        (
            "    dtypes:",
            "    disabled: true\n    dtypes:",
            "m.yaml:7: kernels[0].disabled: found True; input should be a valid string",
        ),
        (
            "    dtypes:",
            "    check: {entry: acme:check, reads: []}\n    dtypes:",
            "m.yaml:7: kernels[0].check.reads: found []; list should have at least 1 item after validation, not 0",
        ),
        (
            "  - op: add",
            "  - op: Add",
            "m.yaml:4: kernels[0].op: found 'Add'; string should match pattern '^[a-z][a-z0-9_]*$'",
        ),
        (
            "plugin: acme",
            "plugin: acme-kernels",
            "m.yaml:2: plugin: found 'acme-kernels'; string should match pattern '^[a-z][a-z0-9_]*$'",
        ),
        (
            "    dtypes:",
            "    saves: all\n    dtypes:",
            "m.yaml:7: kernels[0].saves: found 'all'; input should be 'contract', 'own', 'none' or 'autograd'",
        ),
        (
            "kernels:",
            "hooks: [portakernel_target]\nkernels:",
            (
                "m.yaml:3: hooks[0]: unknown hook 'portakernel_target'; did you mean 'portakernel_targets' or"
                " 'portakernel_cli' or 'portakernel_kernels'?"
            ),
        ),
        (
            "    dtypes:",
            "    formats: {x: [rows]}\n    dtypes:",
            "m.yaml:7: kernels[0].formats.x[0]: unknown scale format 'rows'; did you mean 'row'?",
        ),
        (
            "kernels:",
            "modes: {m: {context: 'a:b', torch_device: cpu, allowance_ulp: {bf16: 1}}}\nkernels:",
            "m.yaml:3: modes.m.allowance_ulp.bf16: unknown dtype 'bf16'; did you mean 'bfloat16'?",
        ),
        ("kernels:", "kernels: 3\nx:", "m.yaml:3: kernels: found 3; input should be a valid list"),
    ],
)
def test_a_wrong_value_is_named_with_line_path_and_what_is_accepted(load, old, new, problem):
    assert problem in problems(load, PLUGIN.replace(old, new, 1))


@pytest.mark.parametrize(
    "entry", ["acme.add", "acme:", ":add", "acme:add.run", "acme add:run", "a-b:add", "acme..x:add", 5, ""]
)
def test_an_entry_is_module_colon_function(load, entry):
    text = PLUGIN.replace("entry: acme:add", f"entry: {entry!r}")
    (problem,) = problems(load, text)
    assert problem.startswith(f"m.yaml:5: kernels[0].entry: found {entry!r}; ")


@pytest.mark.parametrize("specifier", ["2.11", ">=two", "=> 2", "latest"])
def test_a_version_is_a_specifier(load, specifier):
    text = PLUGIN.replace("kernels:", f"requires:\n  modules:\n    torch: '{specifier}'\nkernels:")
    message = (
        f"m.yaml:5: requires.modules.torch: Invalid specifier: '{specifier}'; write a version specifier such as '>=3.6'"
    )
    assert problems(load, text) == [message]


def test_a_distribution_is_of_a_module_that_is_required(load):
    lines = "requires:\n  modules: {acme: ''}\n  distributions: {acme: acme-kernels, yaml: PyYAML}\nkernels:"
    assert problems(load, PLUGIN.replace("kernels:", lines)) == [
        "m.yaml:3: requires: modules lacks yaml, which distributions names"
    ]


def test_a_missing_key_is_named_where_it_belongs(load):
    assert problems(load, "schema_version: 1\nkernels:\n\n  - op: add\n") == [
        "m.yaml:1: required key 'plugin' is missing",
        "m.yaml:4: kernels[0]: required key 'entry' is missing",
    ]


def test_all_problems_are_told_at_once(load):
    text = PLUGIN.replace("plugin: acme", "plugin: 5").replace("[float32]", "float32").replace("entry:", "entri:")
    assert len(problems(load, text)) == 4


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ("{}", "is empty; give min, max, multiple_of, in or power_of_two"),
        ("{min: null}", "is empty; give min, max, multiple_of, in or power_of_two"),
        ("{power_of_two: false}", "is empty; give min, max, multiple_of, in or power_of_two"),
        ("{min: 5, max: 4}", "min 5 is greater than max 4"),
        ("{in: []}", "`in` lists nothing, so that no request could be served"),
    ],
)
def test_a_limit_bounds_something_and_not_everything(load, limit, problem):
    text = PLUGIN.replace("    dtypes:", f"    limits:\n      M: {limit}\n    dtypes:")
    assert problems(load, text) == [f"m.yaml:8: kernels[0].limits.M: {problem}"]


def test_equal_bounds_are_a_limit(load):
    text = PLUGIN.replace("    dtypes:", "    limits: {M: {min: 4, max: 4}}\n    dtypes:")
    assert load(text).manifest.kernels[0].limits["M"].max == 4


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("x: [float32]", "x: []", "m.yaml:7: kernels[0].dtypes.x: "),
        ("nvidia: sm_80+", "nvidia: []", "m.yaml:6: kernels[0].targets.nvidia: "),
    ],
)
def test_a_claim_that_could_serve_nothing_is_refused(load, old, new, where):
    assert any(problem.startswith(where) for problem in problems(load, PLUGIN.replace(old, new)))


def test_tensors_of_its_own_need_a_backward_of_its_own(load):
    text = PLUGIN.replace("    dtypes:", "    saves: own\n    dtypes:")
    message = "saves: own needs a backward, since no other kernel's can read those tensors"
    assert problems(load, text) == [f"m.yaml:4: kernels[0]: {message}"]


def test_what_was_built_needs_something_that_builds(load):
    text = PLUGIN.replace("    dtypes:", "    built: acme.a:built\n    dtypes:")
    assert problems(load, text) == ["m.yaml:4: kernels[0]: built needs a build, which makes what it looks for"]


@pytest.mark.parametrize(("text", "shown"), [("- a\n", "['a']"), ("acme\n", "'acme'")])
def test_a_manifest_is_a_mapping(load, text, shown):
    assert problems(load, text) == [f"m.yaml:1: holds {shown}, not a mapping of keys"]


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_a_manifest_without_a_key_says_how_to_begin(load, text):
    assert problems(load, text) == ["m.yaml:1: holds no keys; the first is `schema_version: 1`"]


def test_a_key_that_yaml_reads_as_no_text_is_refused_with_its_line(load):
    (problem,) = problems(load, PLUGIN + "no: 1\n")
    assert problem.startswith("m.yaml:8: ")


def test_a_long_value_is_shown_short(load):
    (problem,) = problems(load, PLUGIN.replace("plugin: acme", f"plugin: [{'x' * 200}]"))
    assert problem == f"m.yaml:2: plugin: found ['{'x' * 55}...; input should be a valid string"


# --- schema versions -------------------------------------------------------------------------------------------------

NEWER = PLUGIN.replace("schema_version: 1", "schema_version: 2").replace("    entry:", "    colour: red\n    entry:")


def test_strictly_a_newer_schema_version_is_an_error(load):
    message = "m.yaml:1: schema_version: is 2; this portakernel knows versions up to 1"
    unknown = "m.yaml:5: kernels[0].colour: unknown key; "
    first, second = problems(load, NEWER)
    assert first == message
    assert second.startswith(unknown)
    assert problems(load, PLUGIN.replace("schema_version: 1", "schema_version: 2")) == [message]


def test_at_run_time_an_unknown_key_of_a_newer_version_is_warned_about_and_left_out(load):
    with pytest.warns(ManifestWarning) as caught:
        manifest = load(NEWER, strict=False).manifest
    message = "m.yaml:5: kernels[0].colour: schema_version 2 is newer than 1; the unknown key is ignored"
    assert [str(warning.message) for warning in caught] == [message]
    assert manifest.kernels[0].entry == "acme:add"


def test_at_run_time_a_newer_version_without_unknown_keys_is_read_in_silence(load):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(PLUGIN.replace("schema_version: 1", "schema_version: 2"), strict=False).manifest.plugin == "acme"


def test_at_run_time_an_unknown_key_of_this_version_is_an_error(load):
    text = NEWER.replace("schema_version: 2", "schema_version: 1")
    (problem,) = problems(load, text, strict=False)
    assert problem.startswith("m.yaml:5: kernels[0].colour: unknown key; ")


@pytest.mark.filterwarnings("ignore::portakernel.errors.ManifestWarning")
def test_at_run_time_a_wrong_value_of_a_newer_version_is_an_error(load):
    text = NEWER.replace("[float32]", "float32")
    assert problems(load, text, strict=False)[-1].endswith("dtypes.x: found 'float32'; input should be a valid list")


def test_an_unknown_key_beside_a_branch_of_a_union_is_left_out_too(load):
    text = PLUGIN.replace("schema_version: 1", "schema_version: 2").replace("sm_80+", "{in: sm_80+, colour: red}")
    with pytest.warns(ManifestWarning, match=r"kernels\[0\].targets.nvidia.colour: schema_version 2 is newer than 1"):
        manifest = load(text, strict=False).manifest
    assert manifest.kernels[0].targets["nvidia"].include == "sm_80+"


@pytest.mark.parametrize("version", [0, -1])
def test_there_is_no_version_before_the_first(load, version):
    text = PLUGIN.replace("schema_version: 1", f"schema_version: {version}")
    assert problems(load, text)[0].startswith("m.yaml:1: schema_version: ")


# --- backend.yaml ----------------------------------------------------------------------------------------------------


def test_the_smallest_backend_is_read(load):
    manifest = load(BACKEND, model=BackendManifest).manifest
    assert (manifest.vendor, manifest.attach, manifest.open_ended) == ("acme", False, False)
    assert manifest.archs["a1"].dtypes.native == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[[a1, a2]]", "[[a1, a2, a3]]", "m.yaml:1: archs lacks a3, which lines or families name"),
        ("Two,", "Two, products: [X 1, A-1],", "m.yaml:1: archs.a2.products: 'A-1' is also a name of a1"),
        (
            "One, source: invented}\n  a2: {name: Two,",
            "One, products: [X1], source: invented}\n  a2: {name: Two, products: [x-1],",
            "m.yaml:1: archs.a2.products: 'x-1' is also a name of a1",
        ),
        ("all: [a1, a2]", "all: [a1, a4, a3]", "m.yaml:1: archs lacks a3, a4, which lines or families name"),
        (
            "[[a1, a2]]",
            "[[]]",
            "m.yaml:5: lines[0]: found []; list should have at least 1 item after validation, not 0",
        ),
        ("[[a1, a2]]", "[a1, a2]", "m.yaml:5: lines[0]: found 'a1'; input should be a valid list"),
        ("One, source: invented", "One", "m.yaml:8: archs.a1: required key 'source' is missing"),
        (
            "One, source: invented",
            "One, source: ''",
            "m.yaml:8: archs.a1.source: found ''; string should have at least 1 character",
        ),
        ("One,", "One, warp_sise: 32,", "m.yaml:8: archs.a1.warp_sise: unknown key; did you mean 'warp_size'?"),
        (
            "One,",
            "One, dtypes: {native: [float23]},",
            (
                "m.yaml:8: archs.a1.dtypes.native[0]: unknown dtype 'float23'; did you mean 'float32' or"
                " 'float64' or 'float16'?"
            ),
        ),
        (
            "One,",
            "One, formats: {emulated: [mxfp9]},",
            "m.yaml:8: archs.a1.formats.emulated[0]: unknown scale format 'mxfp9'; did you mean 'mxfp8' or 'mxfp4'?",
        ),
        (
            "One,",
            "One, dtypes: {nativ: [float32]},",
            "m.yaml:8: archs.a1.dtypes.nativ: unknown key; did you mean 'native'?",
        ),
        (
            "vendor: acme",
            "vendor: Acme",
            "m.yaml:3: vendor: found 'Acme'; string should match pattern '^[a-z][a-z0-9_]*$'",
        ),
        ("torch_device: acme\n", "", "m.yaml:1: required key 'torch_device' is missing"),
        (
            "vendor: acme",
            "vendor: acme\nattach: maybe",
            "m.yaml:4: attach: found 'maybe'; input should be a valid boolean",
        ),
    ],
)
def test_a_backends_wrong_value_is_named_with_line_and_path(load, old, new, problem):
    assert problem in problems(load, BACKEND.replace(old, new, 1), model=BackendManifest)
