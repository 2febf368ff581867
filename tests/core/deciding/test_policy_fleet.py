"""One policy for machines that differ: names that are not here, several files, lists of plugins."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from portakernel import runtime
from portakernel.api import load_policy
from portakernel.calling.fallback import Fallbacks
from portakernel.claims.capability import ReasonCode
from portakernel.config import Config
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import intern_policy, make_layer
from portakernel.deciding.policy_file import read_drafts
from portakernel.deciding.unmet import unknown_plugins
from portakernel.errors import (
    ArgumentTypeError,
    ConfigError,
    ConfigWarning,
    PolicyFileError,
    ReferenceWarning,
    UnknownNameError,
)
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry

LEFT_OUT = "The preference is left out"
CORRECT = f"{LEFT_OUT}: correct the name, or install what has it"
NEAR = "unknown kernel or plugin 'b.ad'; did you mean 'b.add' or 'a.add'?"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes a policy file, its ``schema_version`` in the first line; returns its path."""

    def write_file(text: str, name: str = "policy.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"schema_version: 1\n{text}", encoding="utf-8")
        return str(path)

    return write_file


@pytest.fixture
def fleet(world, write) -> Callable[..., Dispatcher]:
    """A dispatcher under policy files, the last the strongest; kernels of plugins ``a`` (20) and ``b`` (10)."""
    world.plugin("a", {"priority": 20}, {"op": "rms_norm", "priority": 20})
    world.plugin("b", {"priority": 10}, {"op": "rms_norm", "priority": 10})

    def make(*texts: str, **environment: str) -> Dispatcher:
        paths = [write(text, f"{number}.yaml") for number, text in enumerate(texts)]
        return world.dispatcher(**({"POLICY": os.pathsep.join(paths)} if paths else {}), **environment)

    return make


def warned(function: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    assert {warning.category for warning in caught} <= {ConfigWarning}
    return [str(warning.message) for warning in caught]


def texts(decision, name: str) -> list[str]:
    return [rejection.text for rejection in decision.candidate(name).rejections]


# --- names that are not here -----------------------------------------------------------------------------------------


def test_a_preference_for_what_is_not_here_is_told_once_with_its_line_and_the_next_one_holds(world, fleet):
    dispatcher = fleet("\nprefer:\n  - b.ad\n  - b\n")
    assert warned(lambda: dispatcher.decide(world.request())) == [f"0.yaml:4: prefer: {NEAR} {CORRECT}"]
    decision = dispatcher.decide(world.request())
    assert (decision.chosen.name, decision.why) == ("b.add", "0.yaml:5 prefers it")
    assert dispatcher.decide(world.request("rms_norm")).chosen.name == "b.rms_norm"


def test_where_all_that_is_preferred_is_not_here_a_weaker_source_decides(world, fleet):
    dispatcher = fleet("prefer: b\n", PREFER="gone")
    known = "unknown kernel or plugin 'gone'; 29 are known, none of them close."
    found = warned(lambda: dispatcher.decide(world.request()))
    assert [text.partition(";")[0] for text in found] == [known.partition(";")[0].join(["PORTAKERNEL_PREFER: ", ""])]
    assert dispatcher.decide(world.request()).why == "0.yaml:2 prefers it"


def test_what_is_not_here_is_denied_without_a_word(world, fleet):
    dispatcher = fleet("deny: [b.ad, gone]\nops:\n  add: {deny: b.rms_norm}\n", DENY="nowhere")
    assert dispatcher.decide(world.request()).chosen.name == "a.add"


def test_a_preference_under_an_op_that_the_plugin_has_no_kernel_of_is_left_out(world, fleet):
    dispatcher = fleet("ops:\n  add:\n    prefer: [a.rms_norm, b]\n")
    has = "'a.rms_norm' has kernels of rms_norm, not of add; those are a.add, b.add, reference.add."
    assert warned(lambda: dispatcher.decide(world.request())) == [f"0.yaml:4: prefer: {has} {CORRECT}"]
    assert dispatcher.decide(world.request()).chosen.name == "b.add"


def test_names_for_other_targets_are_not_asked_for(world, fleet):
    text = "targets:\n  acme:acme2:\n    prefer: b.ad\n    use: gone\n"
    dispatcher = fleet(text)
    assert dispatcher.decide(world.request(target="acme:acme1")).chosen.name == "a.add"
    with pytest.raises(UnknownNameError, match=r"^0\.yaml:5: use: unknown kernel or plugin 'gone'"):
        dispatcher.decide(world.request(target="acme:acme2"))


def test_a_preference_for_a_target_is_told_when_a_call_is_on_it(world, fleet):
    dispatcher = fleet("targets:\n  acme:acme2: {prefer: b.ad}\n")
    dispatcher.decide(world.request(target="acme:acme1"))
    told = warned(lambda: dispatcher.decide(world.request(target="acme:acme2")))
    assert told == [f"0.yaml:3: prefer: {NEAR} {CORRECT}"]


def test_what_a_weaker_file_uses_and_is_not_here_stops_nothing_that_a_stronger_one_decides(world, fleet):
    base = "targets:\n  acme: {use: gone}\n"
    dispatcher = fleet(base, "ops: {add: {prefer: b}}\n")
    assert dispatcher.decide(world.request()).chosen.name == "b.add"
    with pytest.raises(UnknownNameError, match="unknown kernel or plugin 'gone'"):
        dispatcher.decide(world.request(op="rms_norm"))
    pinned = intern_policy((make_layer("argument", use="a.rms_norm"), *dispatcher.policy().layers))
    assert dispatcher.decide(world.request(op="rms_norm"), pinned).chosen.name == "a.rms_norm"


@pytest.mark.parametrize("wish", ["use", "prefer"])
def test_of_a_plugin_that_is_named_the_kernel_of_highest_priority_serves_and_the_others_are_not_missed(
    world, fleet, wish
):
    world.plugin(
        "c",
        {"name": "slow", "priority": 5},
        {"name": "elsewhere", "priority": 99, "targets": {"other": "any"}},
        {"name": "fast", "priority": 9},
    )
    dispatcher = fleet(f"{wish}: c\n")
    decision = dispatcher.decide(world.request())
    assert decision.chosen.name == "c.fast"
    assert Fallbacks(dispatcher).reasons(decision, dispatcher.process_policy) == []
    other = fleet(f"{wish}: [c.slow, c]\n").decide(world.request())
    assert other.chosen.name == "c.slow"


def test_what_is_used_and_not_here_is_an_error_when_the_file_is_read(fleet):
    with pytest.raises(PolicyFileError) as caught:
        fleet("prefer: gone\nops:\n  add:\n    use: [a.add, b.ad]\n")
    (problem,) = caught.value.problems
    assert problem.endswith(f"0.yaml:5: ops.add.use[1]: {NEAR}")


@pytest.mark.parametrize(
    "section", ["ops:\n  fused_add: {use: gone}\n", "targets:\n  acme: {ops: {fused_add: {deny: a}}}\n"]
)
def test_an_op_that_this_portakernel_does_not_have_is_told_and_left_out(world, fleet, section):
    found: list[Dispatcher] = []
    (told,) = warned(lambda: found.append(fleet(section)))
    assert told.startswith("0.yaml:3: ")
    assert "ops.fused_add: unknown op 'fused_add'; " in told
    assert told.endswith(f" Its wishes are left out: {DOUBT}")
    assert warned(lambda: found[0].decide(world.request())) == []


def test_hardware_that_nothing_here_knows_is_told_and_its_section_holds_for_what_is_called_so(world, fleet):
    found: list[Dispatcher] = []
    section = "targets:\n  npu: {deny: a}\n  acme:acme9: {deny: a}\n  novel:n1+: {deny: a}\n"
    told = warned(lambda: found.append(fleet(section)))
    otherwise = SPELT_SO
    assert told == [
        f"0.yaml:3: targets.npu: unknown vendor 'npu'; known: acme. {otherwise}",
        f"0.yaml:4: targets.acme:acme9: unknown acme arch 'acme9'; did you mean 'acme2' or 'acme1'? {otherwise}",
        f"0.yaml:5: targets.novel:n1+: unknown vendor 'novel'; known: acme. {otherwise}",
    ]
    assert texts(found[0].decide(world.request(target="acme:acme9")), "a.add") == ["denied by 0.yaml:4"]
    world.plugin("everywhere", {"targets": {"acme": "any"}})
    assert "denied by 0.yaml:3" in texts(found[0].decide(world.request(target="npu:unknown")), "a.add")
    assert "denied by 0.yaml:5" in texts(found[0].decide(world.request(target="novel:n1")), "a.add")


DOUBT = "correct it, or leave it as it is if it is meant for other machines"
SPELT_SO = f"It holds for devices that are called so, if any are: {DOUBT}"
IN_RANGE = f"It holds for the devices in that range, if any are: {DOUBT}"
ACME9 = "unknown acme arch 'acme9'; did you mean 'acme2' or 'acme1'?"
UNLISTED = {
    "acme:acme9": f"{ACME9} {SPELT_SO}",
    "acme:acme9+": f"{ACME9} {IN_RANGE}",
    "acme:acme1..acme9": f"{ACME9} {IN_RANGE}",
    "zeta:z2": f"unknown zeta arch 'z2'; known: z1. {SPELT_SO}",
}


@pytest.mark.parametrize(("selector", "unknown"), UNLISTED.items())
def test_an_arch_that_is_not_listed_is_told_once_and_an_error_where_names_are_strict(world, fleet, selector, unknown):
    world.backend("zeta", lines=[["z1"]], open_ended=True)
    text = f"targets:\n  {selector}: {{prefer: b}}\n"
    found: list[Dispatcher] = []
    told = warned(lambda: found.append(fleet(text)))
    assert told == [f"0.yaml:3: targets.{selector}: {unknown}"]
    assert warned(lambda: found[0].decide(world.request())) == []
    with pytest.raises(PolicyFileError, match=r"0\.yaml:4: targets\."):
        fleet(f"strict_names: true\n{text}")


def test_a_range_that_ends_with_a_newer_arch_holds_for_those_between(world, fleet):
    world.plugin("c", {"targets": {"acme": "any"}, "priority": 30})
    with pytest.warns(ConfigWarning):
        dispatcher = fleet("targets:\n  acme:acme2..acme9: {prefer: b}\n")
    chosen = [dispatcher.decide(world.request(target=f"acme:acme{n}")).chosen.name for n in (1, 2, 5, 10)]
    assert chosen == ["c.add", "b.add", "b.add", "c.add"]


@pytest.mark.parametrize("vendor", ["acme", "zeta", "npu"])
def test_a_colon_without_an_arch_is_an_error_of_every_vendor(world, fleet, vendor):
    world.backend("zeta", lines=[["z1"]], open_ended=True)
    such = {"acme": ", or one of them, as in 'acme:acme2'", "zeta": ", or one of them, as in 'zeta:z1'"}.get(vendor, "")
    with pytest.raises(PolicyFileError) as caught:
        fleet(f"targets:\n  '{vendor}:': {{prefer: b}}\n")
    (problem,) = caught.value.problems
    said = f"targets.{vendor}:: names no arch after the colon; write {vendor!r} for all of its archs{such}"
    assert problem.partition("0.yaml:3: ")[2] == said


@pytest.mark.parametrize(
    ("term", "problem"),
    [
        ("..z1", "range '..z1' lacks an arch; write both, or one with a plus: sm_80..sm_90, sm_80+"),
        ("new+", "'new' is a family of zeta's archs; name one of them: z1, z2"),
        ("hal5+", "'hal5' may mean z1 or z2; write one of these"),
    ],
)
def test_a_range_begins_and_ends_with_one_arch(world, fleet, term, problem):
    sold = {"z1": "Lite Hal 5", "z2": "Pro Hal 5"}
    archs = {name: {"name": name, "source": "invented", "products": [product]} for name, product in sold.items()}
    world.backend("zeta", lines=[["z1", "z2"]], families={"new": ["z1", "z2"]}, archs=archs)
    with pytest.raises(PolicyFileError) as caught:
        fleet(f"targets:\n  zeta:{term}: {{prefer: b}}\n")
    assert caught.value.problems[0].endswith(f":3: targets.zeta:{term}: {problem}")


@pytest.fixture
def zeta(world) -> None:
    archs = {f"z{n}": {"name": f"z{n}", "source": "invented", "products": [f"Hal {n}00"]} for n in (1, 2, 3)}
    world.backend("zeta", lines=[["z1", "z2", "z3"]], archs=archs)
    for name, priority in (("c", 20), ("d", 10)):
        world.plugin(name, {"priority": priority, "targets": {"zeta": "any"}})


@pytest.mark.parametrize(
    ("selector", "covered"), [("hal200", [2]), ("hal200+", [2, 3]), ("hal100..HAL-200", [1, 2]), ("z1..hal200", [1, 2])]
)
@pytest.mark.usefixtures("zeta")
def test_a_product_stands_for_its_arch_in_ranges_too(world, fleet, selector, covered):
    dispatchers: list[Dispatcher] = []
    text = f"strict_names: true\ntargets:\n  zeta:{selector}: {{prefer: d}}\n"
    assert warned(lambda: dispatchers.append(fleet(text))) == []
    chosen = [dispatchers[0].decide(world.request(target=f"zeta:z{n}")).chosen.name for n in (1, 2, 3)]
    assert chosen == ["d.add" if n in covered else "c.add" for n in (1, 2, 3)]


@pytest.mark.parametrize("name", ["hal200", "hal200+", "z2"])
@pytest.mark.usefixtures("zeta")
def test_a_product_or_arch_without_its_vendor_is_offered_with_it(fleet, name):
    said = f"0.yaml:3: targets.{name}: unknown vendor {name!r}; did you mean 'zeta:{name}'?"
    said += f" Its wishes are left out: {DOUBT}"
    assert warned(lambda: fleet(f"targets:\n  {name}: {{prefer: d}}\n")) == [said]


def test_a_range_that_is_backwards_is_an_error_wherever_the_file_is_read(fleet):
    with pytest.raises(PolicyFileError, match=r"range 'acme2\.\.acme1' is not within one line"):
        fleet("targets:\n  acme:acme2..acme1: {deny: a}\n")


def test_strict_names_make_every_name_an_error_wherever_it_stands(world, fleet):
    section = "prefer: b.ad\ndeny: b.ad\nplugins: [a, bb]\ntargets:\n  acme:acme2: {prefer: b.ad}\n"
    with pytest.raises(PolicyFileError) as caught:
        fleet(f"strict_names: true\n{section}")
    assert [problem.partition("0.yaml")[2] for problem in caught.value.problems] == [
        f":3: prefer: {NEAR}",
        f":4: deny: {NEAR}",
        ":5: plugins[1]: unknown plugin 'bb'; did you mean 'b'?",
        f":7: targets.acme:acme2.prefer: {NEAR}",
    ]
    for key in ("PREFER", "DENY"):
        with pytest.raises(UnknownNameError) as refused:
            fleet("strict_names: true\n", **{key: "b.ad"})
        assert str(refused.value) == f"PORTAKERNEL_{key}: {NEAR}"
    with pytest.raises(UnknownNameError) as refused:
        fleet("strict_names: true\n", DISABLE="b.ad")
    assert str(refused.value) == NEAR.replace("kernel or plugin", "kernel, plugin or backend").join(
        ["PORTAKERNEL_DISABLE: ", ""]
    )


@pytest.mark.parametrize(
    ("variable", "kind"),
    [("PLUGINS", "plugin"), ("DISABLE", "kernel, plugin or backend"), ("DENY", "kernel or plugin")],
)
def test_strict_names_hold_for_each_variable_that_names_something(fleet, variable, kind):
    with pytest.raises(UnknownNameError, match=rf"^PORTAKERNEL_{variable}: unknown {kind} 'fooo'"):
        fleet("strict_names: true\n", **{variable: "fooo"})


def test_strict_names_hold_for_set_policy_and_blocks_too_and_the_last_file_decides_on_them(fleet):
    strict, host = fleet("strict_names: true\n"), fleet("strict_names: true\n", "strict_names: false\n")
    layer = make_layer("context", prefer="b.ad", deny="gone")
    assert host.process.accepted(layer) is layer
    with pytest.raises(UnknownNameError) as caught:
        strict.process.accepted(layer)
    assert str(caught.value) == f"context: prefer: {NEAR}"


def test_set_policy_and_blocks_leave_out_what_is_not_here_but_under_use(world, fleet):
    dispatcher = fleet()
    dispatcher.set_process_layer(make_layer("set_policy", prefer=["b.ad", "b"], deny="gone"))
    assert warned(lambda: dispatcher.decide(world.request())) == [f"set_policy: prefer: {NEAR} {CORRECT}"]
    assert dispatcher.decide(world.request()).chosen.name == "b.add"
    with pytest.raises(UnknownNameError, match=r"^set_policy: use: unknown"):
        dispatcher.set_process_layer(make_layer("set_policy", use="b.ad"))


def test_a_broken_plugin_that_is_preferred_is_told_with_the_way_to_mend_it(world, fleet, write):
    package = world.site.package("bad", plugin="schema_version: 1\nplugin: bad\ncolour: red\n")
    fleet()
    config = Config.from_environment({"PORTAKERNEL_POLICY": write("prefer: [bad, b]", "0.yaml")})
    dispatcher = Dispatcher(Registry(PluginManager([*world.packages, package])), config)
    (told,) = warned(lambda: dispatcher.decide(world.request()))
    assert told.startswith("0.yaml:2: prefer: unknown kernel or plugin 'bad'; ")
    assert f"Plugin bad (bad-dist 1.0) is broken: {package.folder}" in told
    assert told.endswith(f". {LEFT_OUT}: `portakernel doctor` says how to mend the plugin")
    assert dispatcher.decide(world.request()).chosen.name == "b.add"


@pytest.mark.parametrize(
    ("text", "environment", "why"),
    [
        ("prefer: b\n", {"DISABLE": "b"}, "PORTAKERNEL_DISABLE switches it off"),
        ("prefer: b\ndeny: b\n", {}, "0.yaml:3 denies it"),
        ("prefer: b\n", {"DENY": "b"}, "PORTAKERNEL_DENY denies it"),
        ("prefer: b\n", {"PLUGINS": "a"}, "PORTAKERNEL_PLUGINS allows only a"),
        ("prefer: b\nplugins: a\n", {}, "0.yaml:3 allows only a"),
    ],
)
def test_a_preference_that_the_policy_itself_rules_out_is_told_once_for_all_its_kernels(
    world, fleet, text, environment, why
):
    dispatcher = fleet(text, **environment)
    policy = dispatcher.process_policy

    def serve_all() -> None:
        for op in ("add", "rms_norm"):
            Fallbacks(dispatcher).warn(dispatcher.decide(world.request(op)), policy)

    said = f"0.yaml:2: prefer: 'b' cannot go first: {why}. {LEFT_OUT}: take one of the two back"
    assert warned(serve_all) == [said]


def test_a_preference_of_which_a_part_is_denied_needs_no_word(world, fleet):
    dispatcher = fleet("prefer: b\ndeny: b.add\n")
    decision = dispatcher.decide(world.request())
    assert warned(lambda: Fallbacks(dispatcher).warn(decision, dispatcher.process_policy)) == []
    assert decision.chosen.name == "a.add"


# --- several files ---------------------------------------------------------------------------------------------------


def test_a_later_file_goes_before_an_earlier_one_whole(world, fleet):
    dispatcher = fleet(
        "targets:\n  acme: {ops: {add: {prefer: a}}}\nreference: forbid\n", "prefer: b\nreference: allow\n"
    )
    decision = dispatcher.decide(world.request())
    assert (decision.chosen.name, decision.why) == ("b.add", "1.yaml:2 prefers it")
    wishes = dispatcher.process_policy.wishes("add", world.request().target, dispatcher.registry)
    assert (wishes.reference, wishes.reference_source) == ("allow", "1.yaml:3")


def test_denials_and_requirements_of_all_files_add_up_and_the_environments_too(world, fleet):
    dispatcher = fleet("deny: a.add\nrequire: inplace\n", "deny: b.add\n", REQUIRE="deterministic")
    decision = dispatcher.decide(world.request())
    assert texts(decision, "a.add")[0] == "denied by 0.yaml:2"
    assert texts(decision, "b.add")[0] == "denied by 1.yaml:2"
    by_environment = "does not promise equal results from run to run (required by PORTAKERNEL_REQUIRE)"
    assert by_environment in texts(decision, "a.add")
    assert decision.request.requires == {"deterministic", "inplace"}


def test_all_that_is_wrong_in_any_file_is_told_at_once_and_which_ones_they_are(world, write):
    world.plugin("a")
    good, bad, gone = write("", "good.yaml"), write("opz: 1\nuse: b\n", "bad.yaml"), write("", "x.yaml") + ".none"
    with pytest.raises(PolicyFileError) as caught:
        world.dispatcher(POLICY=os.pathsep.join([good, bad, gone]))
    assert caught.value.path == os.pathsep.join([bad, gone])
    head, first, second, third = str(caught.value).splitlines()
    assert head == "PORTAKERNEL_POLICY: this policy file cannot be accepted:"
    assert first == f"{bad}:2: opz: unknown key; did you mean 'ops'?"
    assert second.startswith(f"{bad}:3: use: unknown kernel or plugin 'b'; ")
    assert third == f"{gone}: cannot be read: No such file or directory"


def test_files_of_one_name_are_told_apart_by_their_folders(world, write):
    world.plugin("a")
    world.plugin("b")
    paths = [write("deny: a", "base/policy.yaml"), write("deny: b", "host/policy.yaml"), write("", "other.yaml")]
    decision = world.dispatcher(POLICY=os.pathsep.join(paths)).decide(world.request())
    assert texts(decision, "a.add") == ["denied by base/policy.yaml:2"]
    assert texts(decision, "b.add") == ["denied by host/policy.yaml:2"]


def test_one_file_named_twice_is_as_if_it_were_named_once(world, fleet, write):
    fleet()
    path = write("prefer: b")
    dispatcher = world.dispatcher(POLICY=os.pathsep.join([path, path]))
    assert dispatcher.decide(world.request()).why == "policy.yaml:2 prefers it"


def test_load_policy_takes_several_in_the_same_order(world, fleet, write, monkeypatch):
    dispatcher = fleet()
    monkeypatch.setattr(runtime, "_dispatcher", lambda: dispatcher)
    load_policy(write("prefer: a\ndeny: reference\n", "base.yaml"), Path(write("prefer: b", "host.yaml")))
    decision = dispatcher.decide(world.request())
    assert (decision.why, texts(decision, "reference.add")) == ("host.yaml:2 prefers it", ["denied by base.yaml:3"])
    load_policy(None)
    assert dispatcher.process.files == ()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ((), "nothing"),
        ((None, None), "None, None"),
        (("policy.yaml", None), "'policy.yaml', None"),
        ((["policy.yaml"],), "['policy.yaml']"),
        ((b"policy.yaml",), "b'policy.yaml'"),
    ],
)
def test_load_policy_takes_paths_or_none_alone(given, shown):
    with pytest.raises(ArgumentTypeError) as caught:
        load_policy(*given)
    said = "load_policy takes the paths of policy files, or None alone, which takes them away"
    assert str(caught.value) == f"{said}; this is {shown}"


def test_the_reference_that_serves_where_a_third_party_could_says_how_to_ask_for_it(world):
    world.plugin("stranger", first_party=False)
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(world.request(present=True))
    with pytest.warns(ReferenceWarning) as caught:
        Fallbacks(dispatcher).warn(decision, dispatcher.process_policy)
    (told,) = [str(warning.message) for warning in caught]
    assert " stranger's kernel could, once a policy names it: PORTAKERNEL_PREFER=stranger. `portakernel explain" in told


# --- lists of plugins ------------------------------------------------------------------------------------------------

HOOKED = """\
from portakernel.hookspecs import hookimpl
@hookimpl
def portakernel_kernels():
    raise SystemExit("imported")
"""


@pytest.mark.parametrize(("key", "where"), [("file", "0.yaml:2"), ("variable", "PORTAKERNEL_PLUGINS")])
def test_a_plugin_that_is_not_listed_is_a_reason_and_is_not_imported(world, fleet, key, where):
    world.plugin("c", {"priority": 99}, source=HOOKED, hooks=["portakernel_kernels"], ready="fake_c:ready")
    dispatcher = fleet("plugins: [b, gone]\n") if key == "file" else fleet(PLUGINS="b,gone")
    decision = dispatcher.decide(world.request(present=True))
    assert decision.chosen.name == "b.add"
    (rejection,) = decision.candidate("c.add").rejections
    assert (rejection.code, rejection.text) == (ReasonCode.NOT_ALLOWED, f"{where} allows only b, gone")
    assert [c.status for c in decision.candidates if c.kernel.is_reference] == ["eligible"]
    dispatcher.announce(decision)
    assert "fake_c" not in sys.modules
    assert "c" not in {kernel.plugin for kernel in dispatcher.kernels_here("add")}


def test_of_several_lists_all_hold(world, fleet):
    dispatcher = fleet("plugins: [a, b]\n", "plugins: [b, c]\n", PLUGINS="a,b,c")
    decision = dispatcher.decide(world.request())
    assert decision.chosen.name == "b.add"
    assert texts(decision, "a.add") == ["1.yaml:2 allows only b, c"]
    assert dispatcher.registry.manager.allowed == {"b"}


def test_references_remain_beside_any_list_unless_they_are_forbidden(world, fleet):
    assert fleet(PLUGINS="gone").decide(world.request()).chosen.name == "reference.add"
    assert fleet(PLUGINS="gone", REFERENCE="forbid").decide(world.request()).chosen is None


def test_a_list_needs_not_name_the_backends_that_ship_with_portakernel_but_others(world):
    source = "raise SystemExit('imported')"
    theirs = world.backend("zeta", lines=[["zeta1"]], source=source, first_party=False)
    manager = PluginManager(world.packages, allowed=frozenset({"a"}))
    assert {package.name: manager.is_off(package) for package in world.packages} == {"acme": False, "zeta": True}
    assert Registry(manager).devices == ()
    assert (theirs.module in sys.modules, manager.broken) == (False, [])


def test_a_name_of_a_plugin_that_lists_its_kernels_in_code_and_is_not_on_the_list_says_so(world, fleet):
    world.plugin("c", source=HOOKED, hooks=["portakernel_kernels"])
    (told,) = warned(lambda: fleet(PLUGINS="a", PREFER="c.hooked").decide(world.request()))
    hint = "Plugin c (portakernel 1.0) may not be imported, so that kernels which it lists in code are not known."
    assert hint in told


def test_a_list_that_load_policy_brings_holds_until_it_is_taken_away(world, fleet, write):
    dispatcher = fleet()
    before = dispatcher.process_policy
    dispatcher.set_policy_files(read_drafts([write("plugins: b")]))
    assert texts(dispatcher.decide(world.request()), "a.add") == ["policy.yaml:2 allows only b"]
    dispatcher.set_policy_files(())
    assert dispatcher.process_policy is before
    assert dispatcher.decide(world.request()).chosen.name == "a.add"


def test_a_list_that_held_at_the_beginning_holds_for_good(world, fleet, write):
    dispatcher = fleet("plugins: b\n")
    dispatcher.set_policy_files(())
    assert texts(dispatcher.decide(world.request()), "a.add") == ["0.yaml:2 allows only b"]


def test_lists_are_part_of_the_policy_and_of_what_compiled_graphs_depend_on(world, fleet):
    tokens, policies = set(), set()
    for environment in ({}, {"PLUGINS": "a"}, {"PLUGINS": "a,b"}):
        dispatcher = fleet(**environment)
        dispatcher.refresh_trace_token()
        tokens.add(dispatcher.trace_token)
        policies.add(dispatcher.process_policy)
    assert (len(tokens), len(policies)) == (3, 3)
    dispatcher = fleet("plugins: b\n")
    dispatcher.refresh_trace_token()
    listed = dispatcher.trace_token
    dispatcher.set_policy_files(())
    unlisted = fleet()
    unlisted.refresh_trace_token()
    assert len({listed, dispatcher.trace_token, unlisted.trace_token}) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("plugins: []", ":2: plugins: is empty; write one name, or a list of names"),
        ("plugins: [a, b.add]", ":2: plugins[1]: names the kernel 'b.add'; write plugins, such as 'b'"),
        ("plugins: 7", ":2: plugins: found 7; write one name, or a list of names"),
        ("strict_names: maybe", ":2: strict_names: found 'maybe'; input should be a valid boolean"),
        (
            "ops:\n  add: {plugins: a}",
            ":3: ops.add.plugins: unknown key; known: compiled, deny, prefer, reference, require, use",
        ),
    ],
)
def test_a_list_or_switch_of_the_wrong_form_is_an_error(fleet, text, problem):
    with pytest.raises(ConfigError) as caught:
        fleet(text)
    assert str(caught.value).splitlines()[1].partition("0.yaml")[2] == problem


def test_while_a_file_cannot_be_accepted_no_plugin_is_imported(world, write):
    world.plugin("c", source=HOOKED, hooks=["portakernel_kernels"])
    with pytest.raises(PolicyFileError):
        world.dispatcher(POLICY=write("plugin: a\n"))
    assert "fake_c" not in sys.modules


def test_a_name_on_a_list_that_is_not_here_is_known_to_whoever_asks(fleet):
    dispatcher = fleet("plugins: [a, bb, gone]\n")
    (layer,) = dispatcher.process.files[0].layers
    found = list(unknown_plugins(layer, dispatcher.registry))
    assert [(wish.where, wish.name, wish.near) for wish in found] == [
        ("0.yaml:2: plugins", "bb", True),
        ("0.yaml:2: plugins", "gone", False),
    ]
