"""The policy file: what each key does, its place among the sources, and what is said of a wrong one."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import portakernel
from portakernel import runtime
from portakernel.api import load_policy
from portakernel.calling.fallback import Fallbacks
from portakernel.contracts import own_contracts
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import make_layer
from portakernel.deciding.policy_document import PolicyDocument
from portakernel.deciding.policy_file import load_policy_file, read_drafts
from portakernel.errors import ConfigError, PolicyFileError, ReferenceWarning, nearest

BACKWARDS = "is not within one line of acme's archs, oldest first"
OF_RMS_NORM = "a.rms_norm, b.rms_norm, reference.rms_norm"
KERNELS = ["a", "a.add", "a.rms_norm", "b", "b.add", "b.rms_norm", "b.second", "reference"]
KEYS = "compiled, deny, ops, plugins, prefer, reference, require, schema_version, shadow, strict_names, targets, use"
KNOWN = nearest("c", [*KERNELS, *(f"reference.{op}" for op in own_contracts())])


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes a policy file, its ``schema_version`` in the first line; returns its path."""

    def write_file(text: str, name: str = "policy.yaml") -> str:
        path = tmp_path / name
        path.write_text(f"schema_version: 1\n{text}", encoding="utf-8")
        return str(path)

    return write_file


@pytest.fixture
def under(world, write) -> Callable[..., Dispatcher]:
    """A dispatcher under a policy file; kernels ``a`` (20), ``b`` (10) of both ops, and ``b.second`` (an ``add``)."""
    promises = {"properties": {"deterministic": True}}
    world.plugin("a", {"priority": 20}, {"op": "rms_norm", "priority": 20})
    world.plugin(
        "b",
        {"priority": 10, **promises},
        {"op": "rms_norm", "priority": 10, **promises},
        {"name": "second", "priority": 5},
    )
    return lambda text, **environment: world.dispatcher(POLICY=write(text), **environment)


def chosen(world, dispatcher, op: str = "add", target: str = "acme:acme1") -> str | None:
    decision = dispatcher.decide(world.request(op, target))
    return decision.chosen.name if decision.chosen else None


def told(decision, name: str) -> list[str]:
    return [rejection.text for rejection in decision.candidate(name).rejections]


# --- each key --------------------------------------------------------------------------------------------------------


def test_a_file_that_wishes_nothing_changes_nothing(world, under):
    dispatcher = under("")
    assert dispatcher.process.files[0].layers == ()
    assert dispatcher.process_policy is world.dispatcher().process_policy
    assert chosen(world, dispatcher) == "a.add"


@pytest.mark.parametrize("text", ["prefer: b", "prefer: [b]", "prefer:\n  - b\n"])
def test_prefer_goes_first_where_it_can(world, under, text):
    dispatcher = under(text)
    decision = dispatcher.decide(world.request())
    line = 3 if text.endswith("\n") else 2
    assert decision.chosen.name == "b.add"
    assert decision.why == f"policy.yaml:{line} prefers it"
    assert told(decision, "a.add") == [f"policy.yaml:{line} puts b.add before it"]


def test_use_is_strict(world, under):
    dispatcher = under("use:\n  - b.second\n")
    decision = dispatcher.decide(world.request())
    assert decision.chosen.name == "b.second"
    assert decision.why == "policy.yaml:3 uses it"
    assert told(decision, "a.add") == ["policy.yaml:3 uses b.second strictly"]
    assert chosen(world, dispatcher, "rms_norm") == "a.rms_norm"


def test_deny_names_the_line_of_each_name(world, under):
    decision = under("deny:\n  - a\n  - b.add\n").decide(world.request())
    assert decision.chosen.name == "b.second"
    assert told(decision, "a.add") == ["denied by policy.yaml:3"]
    assert told(decision, "b.add") == ["denied by policy.yaml:4"]


def test_require_says_who_required(world, under):
    decision = under("require: deterministic").decide(world.request())
    assert decision.chosen.name == "b.add"
    assert decision.request.requires == {"deterministic"}
    assert told(decision, "a.add") == ["does not promise equal results from run to run (required by policy.yaml:2)"]


def test_reference_forbid(world, under):
    decision = under("deny: [a, b]\n\nreference: forbid").decide(world.request())
    assert decision.chosen is None
    assert told(decision, "reference.add") == ["reference: forbid (policy.yaml:4)"]
    assert "reference.add  denied_by_policy  reference: forbid (policy.yaml:4)" in str(decision.error())


@pytest.mark.parametrize(("mode", "warned"), [("allow", 0), ("warn", 1)])
def test_reference_allow_and_warn(world, under, mode, warned):
    dispatcher = under(f"deny: [a, b]\nreference: {mode}")
    decision = dispatcher.decide(world.request(present=True))
    assert decision.chosen.name == "reference.add"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Fallbacks(dispatcher).warn(decision, dispatcher.process_policy)
    assert [warning.category for warning in caught] == [ReferenceWarning] * warned


# --- single ops ------------------------------------------------------------------------------------------------------


def test_what_is_said_of_an_op_goes_before_what_is_said_of_all(world, under):
    dispatcher = under("use: a\nops:\n  rms_norm: {prefer: b}\n")
    assert chosen(world, dispatcher) == "a.add"
    decision = dispatcher.decide(world.request("rms_norm"))
    assert (decision.chosen.name, decision.why) == ("b.rms_norm", "policy.yaml:4 prefers it")


@pytest.mark.parametrize("mode", ["allow", "warn", "forbid"])
def test_each_op_has_its_own_reference_mode(world, under, mode):
    dispatcher = under(f"reference: forbid\nops:\n  add:\n    reference: {mode}\n")
    policy, target = dispatcher.process_policy, world.request().target
    of_add = policy.wishes("add", target, dispatcher.registry)
    of_all = policy.wishes("rms_norm", target, dispatcher.registry)
    assert (of_add.reference, of_add.reference_source) == (mode, "policy.yaml:5")
    assert (of_all.reference, of_all.reference_source) == ("forbid", "policy.yaml:2")
    expected = ["reference: forbid (policy.yaml:5)"] if mode == "forbid" else []
    texts = told(dispatcher.decide(world.request()), "reference.add")
    assert [text for text in texts if "forbid" in text] == expected
    assert told(dispatcher.decide(world.request("rms_norm")), "reference.rms_norm") == [
        "reference: forbid (policy.yaml:2)"
    ]


def test_an_ops_requirement_is_no_other_ops(world, under):
    dispatcher = under("ops:\n  rms_norm:\n    require: [deterministic]\n")
    assert chosen(world, dispatcher) == "a.add"
    assert chosen(world, dispatcher, "rms_norm") == "b.rms_norm"
    assert dispatcher.decide(world.request()).request.requires == frozenset()


def test_denials_and_requirements_add_up_within_the_file(world, under):
    text = "deny: a\nrequire: graph_capture\nops:\n  add: {deny: b.add, require: deterministic}\n"
    decision = under(text).decide(world.request())
    assert decision.request.requires == {"graph_capture", "deterministic"}
    assert told(decision, "a.add")[0] == "denied by policy.yaml:2"
    assert told(decision, "b.add") == [
        "denied by policy.yaml:5",
        "cannot be launched while a stream is captured (required by policy.yaml:3)",
    ]


# --- targets ---------------------------------------------------------------------------------------------------------


def test_what_is_said_of_a_target_goes_before_what_is_said_of_all(world, under):
    dispatcher = under("ops:\n  add: {use: a}\ntargets:\n  acme:acme2: {prefer: b}\n")
    assert chosen(world, dispatcher) == "a.add"
    decision = dispatcher.decide(world.request(target="acme:acme2"))
    assert (decision.chosen.name, decision.why) == ("b.add", "policy.yaml:5 prefers it")


@pytest.mark.parametrize("selector", ["acme", "acme:any", "acme:acme1+", "acme:acme1..acme2", "acme:new"])
def test_a_target_is_a_vendor_or_archs_as_manifests_write_them(world, write, selector):
    world.packages.clear()
    world.backend("acme", lines=[["acme1", "acme2"]], families={"new": ["acme1", "acme2"]})
    world.backend("zeta", lines=[["zeta1"]])
    for name, priority in (("a", 20), ("b", 10)):
        world.plugin(name, {"priority": priority, "targets": {"acme": "any", "zeta": "any"}})
    dispatcher = world.dispatcher(POLICY=write(f"targets:\n  {selector}:\n    prefer: b\n"))
    assert chosen(world, dispatcher) == chosen(world, dispatcher, target="acme:acme2") == "b.add"
    assert chosen(world, dispatcher, target="zeta:zeta1") == "a.add"


def test_the_first_target_that_fits_goes_before_and_within_it_ops_before_all(world, under):
    dispatcher = under(
        "targets:\n  acme:acme1:\n    ops:\n      add: {prefer: b.second}\n    prefer: b\n"
        "  acme: {prefer: a, deny: b.add}\n"
    )
    decision = dispatcher.decide(world.request())
    assert (decision.chosen.name, decision.why) == ("b.second", "policy.yaml:5 prefers it")
    assert told(decision, "b.add") == ["denied by policy.yaml:7"]
    assert chosen(world, dispatcher, "rms_norm") == "b.rms_norm"
    assert chosen(world, dispatcher, target="acme:acme2") == "a.add"


def test_the_reference_may_be_forbidden_on_one_target(world, under):
    dispatcher = under("targets:\n  acme:acme2: {reference: forbid}\n")
    assert told(dispatcher.decide(world.request(target="acme:acme2")), "reference.add") == [
        "reference: forbid (policy.yaml:3)"
    ]
    assert told(dispatcher.decide(world.request()), "reference.add") == ["the reference comes last; a.add serves"]


# --- its place among the sources -------------------------------------------------------------------------------------


def test_argument_context_process_and_environment_go_before_the_file(world, under):
    dispatcher = under("ops:\n  add: {prefer: b.second}\n", PREFER="b")
    assert dispatcher.decide(world.request()).why == "PORTAKERNEL_PREFER prefers it"
    dispatcher.set_process_layer(make_layer("set_policy", use="a"))
    assert dispatcher.decide(world.request()).why == "set_policy uses it"
    dispatcher.context_layers.set((make_layer("context", prefer="b"),))
    assert dispatcher.decide(world.request()).why == "context prefers it"
    policy = dispatcher.policy(make_layer("argument", use="a.add"))
    assert dispatcher.decide(world.request(), policy).why == "argument uses it"


def test_the_file_decides_for_ops_that_nothing_stronger_mentions(world, under):
    dispatcher = under("prefer: b", USE="a.add")
    assert dispatcher.decide(world.request()).why == "PORTAKERNEL_USE uses it"
    assert dispatcher.decide(world.request("rms_norm")).why == "policy.yaml:2 prefers it"


def test_the_files_denials_hold_under_every_source(world, under):
    dispatcher = under("deny: b.add", DENY="b.second")
    decision = dispatcher.decide(world.request(), dispatcher.policy(make_layer("argument", use="b")))
    assert decision.chosen is None
    assert told(decision, "b.add") == ["denied by policy.yaml:2"]
    assert told(decision, "b.second") == ["denied by PORTAKERNEL_DENY"]


def test_a_stronger_source_decides_on_the_reference_even_for_single_ops(world, under):
    dispatcher = under("ops:\n  add: {reference: forbid}\n", REFERENCE="allow")
    wishes = dispatcher.process_policy.wishes("add", world.request().target, dispatcher.registry)
    assert (wishes.reference, wishes.reference_source) == ("allow", "PORTAKERNEL_REFERENCE")


def test_the_same_file_gives_the_same_policy_object(world, under, write):
    dispatcher = under("prefer: b")
    before = dispatcher.process_policy
    path = write("prefer: b")
    dispatcher.set_policy_files(read_drafts([path]))
    assert dispatcher.process_policy is before
    dispatcher.set_policy_files(())
    assert dispatcher.process_policy is world.dispatcher().process_policy


def test_another_file_has_another_trace_token(world, under, write):
    dispatcher = under("prefer: b")
    dispatcher.refresh_trace_token()
    tokens = {dispatcher.trace_token}
    for text in ("deny: b", "ops:\n  add: {deny: b}\n", "targets:\n  acme: {deny: b}\n"):
        dispatcher.set_policy_files(read_drafts([write(text)]))
        tokens.add(dispatcher.trace_token)
    assert len(tokens) == 4


# --- load_policy -----------------------------------------------------------------------------------------------------


def test_load_policy_takes_the_place_of_the_environments_file(world, under, write, monkeypatch):
    dispatcher = under("prefer: b")
    monkeypatch.setattr(runtime, "_dispatcher", lambda: dispatcher)
    dispatcher.set_process_layer(make_layer("set_policy", deny="reference"))
    load_policy(write("prefer: b.second", name="other.yaml"))
    assert dispatcher.decide(world.request()).why == "other.yaml:2 prefers it"
    assert told(dispatcher.decide(world.request()), "reference.add") == ["denied by set_policy"]
    with pytest.raises(PolicyFileError) as caught:
        load_policy(Path(write("use: c", name="wrong.yaml")))
    assert str(caught.value).splitlines()[0] == "load_policy: this policy file cannot be accepted:"
    assert dispatcher.decide(world.request()).why == "other.yaml:2 prefers it"
    load_policy(None)
    assert chosen(world, dispatcher) == "a.add"
    assert dispatcher.process.files == ()


def test_a_set_policy_outlives_a_file_and_a_file_outlives_a_set_policy(world, under):
    dispatcher = under("deny: b.add")
    dispatcher.set_process_layer(make_layer("set_policy", prefer="b"))
    dispatcher.set_process_layer(None)
    assert told(dispatcher.decide(world.request()), "b.add") == ["denied by policy.yaml:2"]


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("prefer: c", [f":2: prefer: unknown kernel or plugin 'c'; {KNOWN}"]),
        ("use: [b, b.ad]", [":2: use[1]: unknown kernel or plugin 'b.ad'; did you mean 'b.add' or 'a.add'?"]),
        (
            "deny:\n- a.add\n- a.ad\n",
            [":4: deny[1]: unknown kernel or plugin 'a.ad'; did you mean 'a.add' or 'b.add'?"],
        ),
        ("require: determinism", [":2: require: unknown property 'determinism'; did you mean 'deterministic'?"]),
        ("reference: forbidden", [":2: reference: found 'forbidden'; did you mean 'forbid'?"]),
        ("reference: off", [":2: 'off' is false in YAML 1.1 and text in 1.2; write false, or quote it"]),
        ("reference:", [":2: reference: is empty; known: allow, forbid, warn"]),
        ("deny:", [":2: deny: is empty; write one name, or a list of names"]),
        (
            f"deny: {{a: {'b' * 99}}}",
            [":2: deny: found a mapping of a; write one name, or a list of names"],
        ),
        (f"reference: {'b' * 99}", [f":2: reference: found '{'b' * 56}...; known: allow, forbid, warn"]),
        ("deny: 5", [":2: deny: found 5; write one name, or a list of names"]),
        ("deny: [a, 5]", [":2: deny[1]: found 5; input should be a valid string"]),
        ("deny: []", [":2: deny: is empty; write one name, or a list of names"]),
        (
            "forbid: a",
            [f":2: forbid: unknown key; known: {KEYS}"],
        ),
        ("op:\n  add: {deny: a}\n", [":2: op: unknown key; did you mean 'ops'?"]),
        ("ops:\n  ad: {deny: a}\n", [":3: ops.ad: unknown op 'ad'; did you mean 'add'?"]),
        ("ops:\n  add: {denied: a}\n", [":3: ops.add.denied: unknown key; did you mean 'deny'?"]),
        ("ops:\n  add: {}\n", [":3: ops.add: is empty; give use, prefer, deny, require, reference, compiled"]),
        (
            "ops:\n  rms_norm:\n    use: b.add\n",
            [f":4: ops.rms_norm.use: 'b.add' has kernels of add, not of rms_norm; those are {OF_RMS_NORM}"],
        ),
        ("targets:\n  acne: {deny: a}\n", [":3: targets.acne: unknown vendor 'acne'; did you mean 'acme'?"]),
        (
            "targets:\n  acme:acme: {deny: a}\n",
            [":3: targets.acme:acme: unknown acme arch 'acme'; did you mean 'acme2' or 'acme1'?"],
        ),
        (
            "targets:\n  acme:acme2..acme1: {deny: a}\n",
            [f":3: targets.acme:acme2..acme1: range 'acme2..acme1' {BACKWARDS}"],
        ),
        (
            "targets:\n  acme: {}\n",
            [":3: targets.acme: is empty; give use, prefer, deny, require, reference, compiled, ops"],
        ),
        (
            "targets:\n  acme:\n    ops:\n      add: {deny: c}\n",
            [f":5: targets.acme.ops.add.deny: unknown kernel or plugin 'c'; {KNOWN}"],
        ),
        ("ops:\n  add: b\n", [":3: ops.add: found 'b'; input should be a mapping of keys"]),
        ("targets:", [":2: targets: found None; input should be a mapping of keys"]),
        ("deny: a\ndeny: b\n", [":3: key 'deny' is a duplicate of the one in line 2"]),
        ("deny: [a\n", [":4: is not valid YAML: while parsing a flow sequence did not find expected ',' or ']'"]),
        ("<<: {deny: a}\n", [":2: merge keys (<<) are not accepted; a plugin.yaml has `defaults:` instead"]),
        (
            "reference: allow\nopz: 1\nuse: c\nops:\n  add: {use: d}\n",
            [
                ":3: opz: unknown key; did you mean 'ops'?",
                f":4: use: unknown kernel or plugin 'c'; {KNOWN}",
                f":6: ops.add.use: unknown kernel or plugin 'd'; {KNOWN}",
            ],
        ),
    ],
)
def test_each_problem_is_told_with_its_place(under, write, text, problems):
    """In a file whose names are strict; in others, those under ``use`` outside ``targets`` have to be known."""
    text += "\nstrict_names: true\n"
    with pytest.raises(PolicyFileError) as caught:
        under(text)
    path = write(text)
    assert caught.value.problems == tuple(f"{path}{problem}" for problem in problems)
    assert (caught.value.path, caught.value.named_by) == (path, "PORTAKERNEL_POLICY")
    head = "PORTAKERNEL_POLICY: this policy file cannot be accepted:"
    assert str(caught.value) == "\n".join([head, *caught.value.problems])
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, ": cannot be read: No such file or directory"),
        (b"", ":1: holds no keys; the first is `schema_version: 1`"),
        (b"- a\n", ":1: holds ['a'], not a mapping of keys"),
        (b"deny: reference\n", ":1: required key 'schema_version' is missing"),
        (b"schema_version: 2\n", ":1: schema_version: is 2; this portakernel knows versions up to 1"),
        (b"schema_version: 1\ndeny: \xff\n", ":2: is not UTF-8: invalid start byte"),
        (b"#" * (1 << 21), f": has {1 << 21} bytes; at most {1 << 20} are accepted"),
        (
            b"schema_version: 1\nops: {no: {deny: reference}}\n",
            ":2: 'no' is false in YAML 1.1 and text in 1.2; write false, or quote it",
        ),
        (
            b"schema_version: 1\ndeny: !!python/name:os.system a\n",
            ":2: tag 'tag:yaml.org,2002:python/name:os.system' is not accepted; quote the value if it is text",
        ),
    ],
)
def test_what_is_no_policy_file_at_all_is_an_error_too(world, tmp_path, content, problem):
    path = tmp_path / "policy.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PolicyFileError) as caught:
        load_policy_file(path, world.registry())
    assert str(caught.value) == f"{path}{problem}"


def test_a_folder_is_no_policy_file(world, tmp_path):
    with pytest.raises(PolicyFileError) as caught:
        load_policy_file(tmp_path, world.registry())
    assert str(caught.value) == f"{tmp_path}: is a folder; a regular file is accepted"


def test_a_name_of_a_broken_plugin_says_that_it_is_broken(world, write, site):
    from portakernel.registry.plugin_manager import PluginManager
    from portakernel.registry.registry import Registry

    package = site.package("bad", plugin="colour: red\n")
    registry = Registry(PluginManager([*world.packages, package]))
    said = r"unknown kernel or plugin 'bad'; .* Plugin bad \(bad-dist 1\.0\) is broken"
    with pytest.raises(PolicyFileError, match=said):
        load_policy_file(write("use: bad"), registry)


def test_an_anchors_names_are_placed_where_they_are_used(world, under):
    dispatcher = under("deny: &slow [b.second]\nops:\n  add: {deny: *slow}\n")
    assert told(dispatcher.decide(world.request()), "b.second") == ["denied by policy.yaml:4"]


def test_the_home_folder_is_understood(world, write, monkeypatch):
    path = Path(write("deny: reference"))
    monkeypatch.setenv("HOME", str(path.parent))
    assert load_policy_file("~/policy.yaml", world.registry()).path == path


# --- the rest --------------------------------------------------------------------------------------------------------


def test_a_file_says_in_words_what_it_holds(under, write):
    file = under(
        "reference: warn\nprefer: [b, a]\nops:\n  add: {use: a.add}\ntargets:\n"
        "  acme:\n    ops:\n      add: {reference: forbid}\n    require: deterministic\n"
    ).process.files[0]
    assert file.sentences() == (
        "add on acme: reference: forbid (policy.yaml:9)",
        "acme: require deterministic (policy.yaml:10)",
        "add: use a.add (policy.yaml:5)",
        "prefer b (policy.yaml:3)",
        "prefer a (policy.yaml:3)",
        "reference: warn (policy.yaml:2)",
    )
    assert file.named_by == "PORTAKERNEL_POLICY"
    assert file.path.is_absolute()


def test_the_schema_is_the_models():
    path = Path(portakernel.__file__).parent / "schema" / "policy.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == PolicyDocument.model_json_schema()


def test_who_has_no_policy_file_does_not_pay_for_one():
    code = """\
import sys
import portakernel
portakernel.explain("add", target="amd:gfx942")
assert "portakernel.deciding.policy_file" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
