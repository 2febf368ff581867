"""Policies that name what is absent, broken or switched off, wrong files and variables, and packages that pretend.

Each either serves as if the wish had not been made, with a warning that names it, or is refused in words that say what
to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import warnings
from pathlib import Path

import pytest

HEAD = "schema_version: 1\n"
MANIFEST = """\
schema_version: 1
plugin: {name}
hooks: {hooks}
kernels:
  - op: add
    entry: {module}:add
    targets: {{cpu: any}}
    dtypes: {{x: [float32], y: [x]}}
    priority: 1000000
"""
SOURCE = "import torch\ndef add(x, y, *, out=None):\n    return torch.add(x, y, out=out)\n"
HOOK = "from portakernel.hookspecs import hookimpl\n@hookimpl\ndef {}(**arguments):\n    return []\n"
ADVICE = "The preference is left out: correct the name, or install what has it"


# --- what runs in a process of its own -------------------------------------------------------------------------------


def _install(name, distribution, *, module=None, source=SOURCE, hooks="[]", broken=False):
    """Writes a distribution with one plugin, as an installer does, before portakernel looks."""
    site = Path("site").absolute()
    module = module or f"{name}_kernels"
    folder = site.joinpath(*module.split("."))
    folder.mkdir(parents=True, exist_ok=True)
    if not broken:
        (folder / "plugin.yaml").write_text(MANIFEST.format(name=name, module=module, hooks=hooks), encoding="utf-8")
    (folder / "__init__.py").write_text(source, encoding="utf-8")
    info = site / f"{distribution.replace('-', '_')}-9.9.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9.9\n", encoding="utf-8")
    with (info / "entry_points.txt").open("a", encoding="utf-8") as file:
        file.write(f"[portakernel]\n{name} = {module}\n" if file.tell() == 0 else f"{name} = {module}\n")
    if str(site) not in sys.path:
        sys.path.insert(0, str(site))


def _write(files):
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text.encode("latin-1"))


def _served(calls=2):
    """What serves an addition, after some calls, and every warning on the way; its numbers are right."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch

        import portakernel

        for _ in range(calls):
            x = torch.full((7,), 1.5)
            assert torch.equal(portakernel.ops.add(x, x), torch.full((7,), 3.0))
        kernels = [row.kernel for row in portakernel.stats() if row.op == "add"]
    return {"kernels": kernels, "warnings": [f"{w.category.__name__}: {w.message}" for w in caught]}


def _chosen():
    """What would serve an addition, decided twice, and every warning on the way; registers no op in torch."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import portakernel

        kernels = {portakernel.explain("add", dtype="float32").chosen.name for _ in range(2)}
    return {"kernels": sorted(kernels), "warnings": [f"{w.category.__name__}: {w.message}" for w in caught]}


def _refused(function=_chosen):
    """The error that a first call ends with, and a second one, which must be the same."""
    told = []
    for _ in range(2):
        try:
            function()
        except ValueError as error:  # what portakernel raises on purpose for wrong names, files and variables
            told.append(f"{type(error).__name__}: {error}")
    assert len(set(told)) == 1, told
    return told[0]


ILL = {
    "missing": "",
    "silent": "",
    "garbled": "plugin: [",
    "foreign": "schema_version: 1\nplugin_api: 99\nplugin: foreign\n",
    "renamed": "schema_version: 1\nplugin: steady\n",
}


def _ill():
    """What doctor, validate and a call say of packages that are broken before their import, each in its own way."""
    from portakernel.cli.doctor.diagnosis import examine
    from portakernel.cli.doctor.findings import findings
    from portakernel_kit.cli.validate.validation import installed_subjects, problems_of

    for name, manifest in ILL.items():
        _install(name, f"{name}-dist", broken=True)
        if manifest:
            Path(f"site/{name}_kernels/plugin.yaml").write_text(manifest, encoding="utf-8")
    Path("site/missing_kernels/__init__.py").unlink()
    Path("site/missing_kernels").rmdir()
    called = _chosen()
    diagnosis = examine()
    found = {name: [one.state for one in findings(diagnosis) if f"{name}-dist" in one.what] for name in ILL}
    said = [one.what for one in findings(diagnosis) if "-dist 9.9) is " in one.what]
    subjects, problems = installed_subjects()
    problems += [problem for several in problems_of(subjects).values() for problem in several]
    return {**called, "ok": diagnosis.ok, "states": found, "said": said, "problems": len(problems)}


def _served_in_the_end(calls):
    """What each call says that a warning stops which is an error, and the one that is served."""
    import torch

    import portakernel

    told = []
    warnings.simplefilter("error", portakernel.errors.ConfigWarning)
    for _ in range(calls):
        try:
            told.append(float(portakernel.ops.add(torch.ones(1), torch.ones(1))))
        except portakernel.errors.ConfigWarning as warning:
            told.append(str(warning).partition(";")[0])
    return told


def _with_doubts(text):
    _write({"policy.yaml": HEAD + text})
    return _served_in_the_end(3)


def _serves_every_op(files):
    """Every op on the first case of its contract: which warnings there were, and a digest of all results."""
    import torch

    from portakernel import ops
    from portakernel.contracts import own_contracts
    from portakernel_kit.conformance.inputs import case_parameters, draw_inputs, generator

    if files:
        _write(files)
        _install("broken", "broken-kernels", broken=True)
    digest, told = hashlib.sha256(), []
    for op, contract in own_contracts().items():
        case = contract.cases[0]
        parameters = case_parameters(contract, case, {})
        made, dtypes = contract.at(parameters), {}
        for name in made.typed:
            accepted = made.accepted_dtypes(name, dtypes)
            dtypes[name] = str(parameters[name]) if name in parameters else accepted[0]
        inputs = draw_inputs(contract, case, dtypes, "cpu", generator(0, op))
        tensors, keywords = inputs.keywords(inputs.tensors)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = getattr(ops, op)(*tensors, **keywords)
        told += [f"{w.category.__name__}: {w.message}" for w in caught]
        if contract.mutated:
            results = tuple(inputs.given[name] for name in contract.mutated if name in inputs.given)
        for result in results if isinstance(results, tuple) else (results,):
            digest.update(result.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return {"ops": len(own_contracts()), "warnings": told, "digest": digest.hexdigest()}


def _under(key, source):
    """Calls under a wish that names what is absent and what is broken, made in one of the ways that wishes are made."""
    import portakernel

    _install("shaky", "shaky-kernels", broken=True)
    names = ["absent", "shaky.add"]
    wish = f"{{{key}: [{', '.join(names)}]}}"
    context = contextlib.nullcontext()
    match source:
        case "variable":
            os.environ[f"PORTAKERNEL_{key.upper()}"] = ",".join(names)
        case "file":
            _write({"policy.yaml": f"{HEAD}{wish[1:-1]}\n"})
        case "op":
            _write({"policy.yaml": f"{HEAD}ops:\n  add: {wish}\n"})
        case "target":
            _write({"policy.yaml": f"{HEAD}targets:\n  cpu: {wish}\n"})
        case "elsewhere":
            _write({"policy.yaml": f"{HEAD}targets:\n  amd: {wish}\n"})
        case "load_policy":
            _write({"loaded.yaml": f"{HEAD}{wish[1:-1]}\n"})
            if key == "use":
                return _refused(lambda: portakernel.load_policy("loaded.yaml"))
            portakernel.load_policy("loaded.yaml")
        case "set_policy":
            if key == "use":
                return _refused(lambda: portakernel.set_policy(use=names))
            portakernel.set_policy(**{key: names})
        case "block":
            context = portakernel.policy(**{key: names})
            if key == "use":
                return _refused(context.__enter__)
    if Path("policy.yaml").exists():
        os.environ["PORTAKERNEL_POLICY"] = "policy.yaml"
    if key == "use" and source != "elsewhere":
        return _refused()
    with context:
        return _chosen()


def _with_files(files, names):
    _write(files)
    os.environ["PORTAKERNEL_POLICY"] = os.pathsep.join(names)
    return _refused()


def _serves_with_files(files, names):
    _write(files)
    os.environ["PORTAKERNEL_POLICY"] = os.pathsep.join(names)
    return _served()


def _with_package(name, distribution, keys):
    _install(name, distribution, **keys)
    return _served()


def _first_party():
    from portakernel.registry.plugin_manager import installed_packages

    return sorted(package.name for package in installed_packages() if package.first_party)


def _with_shadow():
    """A package of our packages' name, before them on the path."""
    import importlib

    for module in [module for module in sys.modules if module.partition(".")[0] == "portakernel_plugins"]:
        del sys.modules[module]
    _install("torch", "portakernel", module="portakernel_plugins.torch")
    Path("site/portakernel_plugins/__init__.py").write_text("", encoding="utf-8")
    importlib.invalidate_caches()
    return _served()


def _refused_here():
    return _refused()


# --- the tests -------------------------------------------------------------------------------------------------------


def test_a_policy_naming_three_plugins_that_are_absent_denied_and_broken_serves_every_op(fault):
    text = f"{HEAD}prefer: [absent, torch, broken]\ndeny: torch\nops:\n  add: {{deny: [absent, broken]}}\n"
    outcome = fault(_serves_every_op, {"policy.yaml": text}, env={"PORTAKERNEL_POLICY": "policy.yaml"})
    plain = fault(_serves_every_op, {}, env={"PORTAKERNEL_DENY": "torch"})
    assert outcome.status == plain.status == 0
    assert outcome.returned["ops"] == plain.returned["ops"] >= 23
    assert outcome.returned["digest"] == plain.returned["digest"]
    absent, denied, broken = (w for w in outcome.returned["warnings"] if w not in plain.returned["warnings"])
    start = "ConfigWarning: policy.yaml:2: prefer: "
    assert absent.startswith(f"{start}unknown kernel or plugin 'absent'; ")
    assert absent.endswith(ADVICE)
    both = "The preference is left out: take one of the two back"
    assert denied == f"{start}'torch' cannot go first: policy.yaml:3 denies it. {both}"
    assert broken.startswith(f"{start}unknown kernel or plugin 'broken'; ")
    assert "Plugin broken (broken-kernels 9.9) is broken: " in broken
    assert broken.endswith("The preference is left out: `portakernel doctor` says how to mend the plugin")


PLACES = {
    "variable": "PORTAKERNEL_PREFER: ",
    "file": "policy.yaml:2: prefer: ",
    "op": "policy.yaml:3: prefer: ",
    "target": "policy.yaml:3: prefer: ",
    "elsewhere": "",
    "load_policy": "loaded.yaml:2: prefer: ",
    "set_policy": "set_policy: prefer: ",
    "block": "context: prefer: ",
}


@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("key", ["use", "prefer", "deny"])
def test_names_that_are_not_here_are_refused_under_use_alone(fault, key, source):
    outcome = fault(_under, key, source)
    assert outcome.status == 0, outcome.stderr
    told = outcome.returned
    if key == "use" and source != "elsewhere":
        assert "unknown kernel or plugin 'absent'; " in told
    elif key == "prefer" and source != "elsewhere":
        start = f"ConfigWarning: {PLACES[source]}unknown kernel or plugin "
        absent, broken = told["warnings"]
        assert absent.startswith(f"{start}'absent'; ")
        assert broken.startswith(f"{start}'shaky.add'; ")
        assert "Plugin shaky (shaky-kernels 9.9) is broken: " in broken
        assert told["kernels"] == ["torch.add"]
    else:
        assert told == {"kernels": ["torch.add"], "warnings": []}


@pytest.mark.parametrize("name", ["torch", "torch.add"])
def test_what_is_switched_off_and_preferred_is_told_once(fault, name):
    outcome = fault(_served, env={"PORTAKERNEL_DISABLE": "torch", "PORTAKERNEL_PREFER": name})
    (warning,) = outcome.returned["warnings"]
    said = f"PORTAKERNEL_PREFER: '{name}' cannot go first: PORTAKERNEL_DISABLE switches it off."
    assert warning.startswith(f"ConfigWarning: {said}")
    assert outcome.returned["kernels"] == ["reference.add"]


OFF = {
    "DISABLE": (",".join(ILL), "PORTAKERNEL_DISABLE switches it off", "switched off by PORTAKERNEL_DISABLE"),
    "PLUGINS": (
        "torch,triton",
        "PORTAKERNEL_PLUGINS allows only torch, triton",
        "left out: PORTAKERNEL_PLUGINS does not allow it",
    ),
}


@pytest.mark.parametrize("variable", OFF)
def test_what_is_broken_and_switched_off_is_nobodys_to_mend(fault, variable):
    value, ruled, said = OFF[variable]
    environment = {f"PORTAKERNEL_{variable}": value, "PORTAKERNEL_PREFER": ",".join(ILL)}
    told = fault(_ill, env=environment).returned
    end = "The preference is left out: take one of the two back"
    assert told["warnings"] == [
        f"ConfigWarning: PORTAKERNEL_PREFER: '{name}' cannot go first: {ruled}. {end}" for name in ILL
    ]
    assert (told["ok"], told["problems"]) == (True, 0)
    assert sorted(told["said"]) == sorted(f"plugin {name} ({name}-dist 9.9) is {said}" for name in ILL)
    assert not any("sick" in states for states in told["states"].values())


def test_what_is_broken_and_not_switched_off_is_sick(fault):
    told = fault(_ill).returned
    assert (told["ok"], told["states"]) == (False, {name: ["sick"] for name in ILL})
    assert told["problems"] >= len(ILL)


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ("ops:\n  ad: {deny: torch}\n", {"POLICY": "policy.yaml"}, "policy.yaml:3: ops.ad: unknown op 'ad'"),
        (
            "targets:\n  npu: {deny: torch}\n",
            {"POLICY": "policy.yaml"},
            "policy.yaml:3: targets.npu: unknown vendor 'npu'",
        ),
        ("", {"PREFER": "gone"}, "PORTAKERNEL_PREFER: unknown kernel or plugin 'gone'"),
        ("", {"PREFR": "torch"}, "PORTAKERNEL_PREFR is set, but no such variable exists"),
    ],
)
def test_a_warning_that_is_an_error_stops_one_call_and_no_more(fault, text, environment, said):
    env = {f"PORTAKERNEL_{name}": value for name, value in environment.items()}
    assert fault(_with_doubts, text, env=env).returned == [said, 2.0, 2.0]


WRONG = {
    "gone.yaml": (None, "cannot be read: No such file or directory"),
    "empty.yaml": ("", ":1: holds no keys; the first is `schema_version: 1`"),
    "list.yaml": ("- a\n", ":1: holds ['a'], not a mapping of keys"),
    "open.yaml": (f"{HEAD}deny: [torch\n", ":3: is not valid YAML"),
    "binary.yaml": ("\xff\xfe\x00", "is not UTF-8"),
    "newer.yaml": ("schema_version: 99\ndeny: torch\n", "is 99; this portakernel knows versions up to 1"),
    "key.yaml": (f"{HEAD}denied: torch\n", ":2: denied: unknown key; did you mean 'deny'?"),
    "demand.yaml": (f"{HEAD}require: reproducible\n", "unknown property 'reproducible'"),
    "mode.yaml": (f"{HEAD}reference: never\n", "found 'never'; known: allow, forbid, warn"),
    "large.yaml": ("#" * (1 << 21), "at most 1048576 are accepted"),
    "deep.yaml": (f"{HEAD}deny: {'[' * 5000}{']' * 5000}\n", "is nested"),
    "folder": (None, "is a folder; a regular file is accepted"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_file_among_several_is_refused_and_named(fault, name):
    text, said = WRONG[name]
    files = {"base.yaml": f"{HEAD}prefer: torch\n", "host.yaml": HEAD, **({} if text is None else {name: text})}
    if name == "folder":
        files["folder/inside"] = ""
    outcome = fault(_with_files, files, ["base.yaml", name, "host.yaml"])
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned.startswith(
        f"PolicyFileError: PORTAKERNEL_POLICY: this policy file cannot be accepted:\n{name}"
    )
    assert said in outcome.returned
    assert "base.yaml" not in outcome.returned
    assert "host.yaml" not in outcome.returned


def test_a_file_written_for_a_newer_portakernel_and_other_hardware_serves(fault):
    text = "ops:\n  paged_sort: {use: acme.sort}\ntargets:\n  npu:npu7+: {use: acme}\n"
    text += "  amd:cdna9: {use: acme}\n  nvidia: {use: acme}\n"
    outcome = fault(_serves_with_files, {"new.yaml": HEAD + text}, ["new.yaml"])
    assert outcome.returned["kernels"] == ["torch.add"]
    starts = ["new.yaml:3: ops.paged_sort: unknown op", "new.yaml:5: targets.npu:npu7+: unknown vendor"]
    starts.append("new.yaml:6: targets.amd:cdna9: unknown amd arch")
    for warning, start in zip(outcome.returned["warnings"], starts, strict=True):
        assert warning.startswith(f"ConfigWarning: {start}")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("USE", "absent", "UnknownNameError: PORTAKERNEL_USE: unknown kernel or plugin 'absent'"),
        ("REQUIRE", "determinism", "ConfigError: PORTAKERNEL_REQUIRE is 'determinism'; did you mean 'deterministic'?"),
        ("REFERENCE", "never", "ConfigError: PORTAKERNEL_REFERENCE is 'never'; known: allow, forbid, warn"),
        ("PLUGINS", ",,", "ConfigError: PORTAKERNEL_PLUGINS is ',,', which names no plugin; name some, or unset it"),
        ("PLUGINS", "torch.add", "ConfigError: PORTAKERNEL_PLUGINS names the kernel 'torch.add'; it takes plugins"),
        ("POLICY", "/nowhere/policy.yaml", "PolicyFileError: PORTAKERNEL_POLICY: this policy file cannot be accepted:"),
        ("POLICY", os.pathsep * 9, f"ConfigError: PORTAKERNEL_POLICY is {os.pathsep * 9!r}, which names no file"),
        ("POLICY", "/dev", "PolicyFileError: PORTAKERNEL_POLICY: this policy file cannot be accepted:"),
        ("CHECKS", "yes", "ConfigError: PORTAKERNEL_CHECKS is 'yes'; known: 0, 1"),
        ("LOG", "debug", "ConfigError: PORTAKERNEL_LOG is 'debug'; known: summary"),
        ("CACHE_MIB", "-1", "ConfigError: PORTAKERNEL_CACHE_MIB is '-1'; give a whole number, 0 or more"),
        ("CACHE_MIB", "9" * 5000, "ConfigError: PORTAKERNEL_CACHE_MIB is '999999999999999999...'; give a whole number"),
    ],
)
def test_a_variable_with_a_wrong_value_is_refused_in_words(fault, variable, value, said):
    outcome = fault(_refused_here, env={f"PORTAKERNEL_{variable}": value})
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned.startswith(said)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *((key, value) for key in ("PREFER", "DENY", "DISABLE") for value in (", ,", "\x1b[31m", "tor ch", "é" * 9999)),
        *((key, " ") for key in ("USE", "REQUIRE", "REFERENCE", "PLUGINS", "POLICY", "LOG", "CACHE_MIB")),
    ],
)
def test_a_variable_that_names_nothing_that_is_here_serves(fault, variable, value):
    outcome = fault(_chosen, env={f"PORTAKERNEL_{variable}": value})
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned["kernels"] == ["torch.add"]
    assert len(outcome.returned["warnings"]) == (variable == "PREFER" and value != ", ,")


@pytest.mark.parametrize(
    ("name", "distribution"),
    [("acme", "portakernel"), ("torch", "portakernel"), ("torch", "acme-kernels"), ("reference", "portakernel")],
)
def test_who_calls_itself_as_we_do_serves_nothing(fault, name, distribution):
    outcome = fault(_with_package, name, distribution, {})
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned == {"kernels": ["torch.add"], "warnings": []}


def test_an_impostors_metadata_does_not_hide_ours(fault):
    ours = fault(_first_party).returned
    outcome = fault(_impostor_beside)
    assert outcome.returned == ours
    assert len(ours) == 17


def _impostor_beside():
    _install("acme", "portakernel")
    return _first_party()


def test_a_package_in_the_place_of_ours_on_the_path_is_a_third_partys(fault):
    outcome = fault(_with_shadow)
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned == {"kernels": ["reference.add"], "warnings": []}


def test_a_third_partys_kernel_waits_and_serves_once_it_is_named(fault):
    unnamed = fault(_with_package, "acme", "acme-kernels", {}, env={"PORTAKERNEL_DENY": "torch"})
    assert unnamed.returned == {"kernels": ["reference.add"], "warnings": []}
    named = fault(_with_package, "acme", "acme-kernels", {}, env={"PORTAKERNEL_PREFER": "acme"})
    assert named.returned == {"kernels": ["acme.add"], "warnings": []}
    alone = {"PORTAKERNEL_DENY": "torch", "PORTAKERNEL_REFERENCE": "forbid"}
    assert fault(_with_package, "acme", "acme-kernels", {}, env=alone).returned["kernels"] == ["acme.add"]


def test_a_plugin_can_be_rolled_back_by_uninstalling_it(fault):
    wishes = {"PORTAKERNEL_PREFER": "acme", "PORTAKERNEL_DENY": "acme.rms_norm"}
    assert fault(_with_package, "acme", "acme-kernels", {}, env=wishes).returned["kernels"] == ["acme.add"]
    outcome = fault(_served, env=wishes)
    assert outcome.returned["kernels"] == ["torch.add"]
    (warning,) = outcome.returned["warnings"]
    assert warning.startswith("ConfigWarning: PORTAKERNEL_PREFER: unknown kernel or plugin 'acme'; ")
    assert warning.endswith(ADVICE)


@pytest.mark.parametrize("hook", ["portakernel_kernels", "portakernel_decided"])
@pytest.mark.parametrize("way", ["variable", "file", "two files"])
def test_what_is_on_no_list_is_not_imported_though_importing_it_would_end_the_process(fault, way, hook):
    keys = {"source": f"import os\nos._exit(77)\n{HOOK.format(hook)}", "hooks": f"[{hook}]"}
    outcome = fault(_listed, way, keys)
    assert outcome.status == 0, outcome.stderr
    where = {"variable": "PORTAKERNEL_PLUGINS", "file": "list.yaml:2", "two files": "list.yaml:2"}[way]
    said = f"ConfigWarning: context: prefer: 'acme' cannot go first: {where} allows only torch, gone."
    both = "The preference is left out: take one of the two back"
    assert outcome.returned == {"kernels": ["torch.add"], "warnings": [f"{said} {both}"]}
    assert fault(_with_package, "acme", "acme-kernels", keys).status == 77


def _listed(way, keys):
    import portakernel

    _install("acme", "acme-kernels", **keys)
    if way == "variable":
        os.environ["PORTAKERNEL_PLUGINS"] = "torch,gone"
    else:
        _write({"list.yaml": f"{HEAD}plugins: [torch, gone]\n", "more.yaml": f"{HEAD}plugins: [torch, acme]\n"})
        os.environ["PORTAKERNEL_POLICY"] = os.pathsep.join(["list.yaml", "more.yaml"][: 1 + (way == "two files")])
    with portakernel.policy(prefer="acme"):
        return _served()
