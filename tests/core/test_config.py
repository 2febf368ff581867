"""``PORTAKERNEL_*`` variables."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from portakernel.config import VARIABLES, Config, unknown_variables
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ConfigError, ConfigWarning, UnknownNameError
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry

NAMES = [
    *("USE", "PREFER", "DENY", "REQUIRE", "REFERENCE", "COMPILED", "PLUGINS", "POLICY"),
    *("DISABLE", "CHECKS", "LOG", "CACHE_DIR", "CACHE_MIB", "PLAN", "TUNING", "RECORD"),
    *("TUNING_DIR", "PATIENCE_S", "CLIENTS"),
]
ROOT = Path(__file__).parents[2]
# Macros of the CUTLASS plugin's C++.
OF_CPLUSPLUS = {"PORTAKERNEL_EXPORT", "PORTAKERNEL_PRODUCT"}


def test_every_variable_is_in_the_table_with_what_it_does():
    assert [variable.name for variable in VARIABLES] == [f"PORTAKERNEL_{name}" for name in NAMES]
    assert all(variable.summary.endswith(".") for variable in VARIABLES)
    assert all(variable.accepts and variable.read_by for variable in VARIABLES)


def test_every_variable_that_any_code_names_is_in_the_table():
    folders = [ROOT / name for name in ("portakernel", "plugins", "backends", "examples", "benchmarks", "website")]
    sources = [file for folder in folders for file in folder.rglob("*") if file.suffix in (".py", ".md", ".template")]
    named = {name for file in sources for name in re.findall(r"PORTAKERNEL_[A-Z_]*[A-Z]", file.read_text("utf-8"))}
    assert named - OF_CPLUSPLUS == {variable.name for variable in VARIABLES}


def test_without_variables_there_are_no_wishes():
    assert Config.from_environment({}) == Config((), (), ())
    assert Config.from_environment({f"PORTAKERNEL_{name}": "" for name in NAMES}) == Config()


@pytest.mark.parametrize("text", ["triton,torch.add", " triton , torch.add ", "triton,,torch.add,"])
@pytest.mark.parametrize("key", ["USE", "PREFER", "DENY", "DISABLE"])
def test_names_are_separated_by_commas(key, text):
    config = Config.from_environment({f"PORTAKERNEL_{key}": text})
    assert getattr(config, key.lower()) == ("triton", "torch.add")


@pytest.mark.parametrize("mode", ["allow", "warn", "forbid", " forbid "])
def test_the_reference_has_three_modes(mode):
    assert Config.from_environment({"PORTAKERNEL_REFERENCE": mode}).reference == mode.strip()


@pytest.mark.parametrize(
    ("mode", "offer"), [("forbidden", "did you mean 'forbid'?"), ("0", "known: allow, forbid, warn")]
)
def test_another_mode_is_refused(mode, offer):
    with pytest.raises(ConfigError, match=re.escape(f"PORTAKERNEL_REFERENCE is {mode!r}; {offer}")):
        Config.from_environment({"PORTAKERNEL_REFERENCE": mode})


def test_the_log_has_one_level_and_another_is_refused():
    assert Config.from_environment({"PORTAKERNEL_LOG": " summary "}).log == "summary"
    with pytest.raises(ConfigError, match=r"^PORTAKERNEL_LOG is 'sumary'; did you mean 'summary'\?$"):
        Config.from_environment({"PORTAKERNEL_LOG": "sumary"})


def test_checks_are_off_unless_1_switches_them_on_and_another_word_is_refused():
    values = {text: Config.from_environment({"PORTAKERNEL_CHECKS": text}).checks for text in ("", "0", " 1 ")}
    assert values == {"": False, "0": False, " 1 ": True}
    with pytest.raises(ConfigError, match=r"^PORTAKERNEL_CHECKS is 'true'; known: 0, 1$"):
        Config.from_environment({"PORTAKERNEL_CHECKS": "true"})


def test_the_cache_has_a_folder_and_a_size():
    config = Config.from_environment({"PORTAKERNEL_CACHE_DIR": " /var/cache/kernels ", "PORTAKERNEL_CACHE_MIB": "64"})
    assert (config.cache_dir, config.cache_mib) == ("/var/cache/kernels", 64)
    with pytest.raises(ConfigError, match=r"^PORTAKERNEL_CACHE_MIB is '2 GiB'; give a whole number, 0 or more$"):
        Config.from_environment({"PORTAKERNEL_CACHE_MIB": "2 GiB"})


@pytest.mark.parametrize("text", ["1" * 19, "9" * 5000, "-1", "1.5", "0x10", "²", "∞"])
def test_a_size_of_the_cache_that_is_no_number_is_refused_in_our_own_words(text):
    shown = text if len(text) <= 36 else "9" * 18 + "..."
    with pytest.raises(ConfigError) as caught:
        Config.from_environment({"PORTAKERNEL_CACHE_MIB": text})
    assert str(caught.value) == f"PORTAKERNEL_CACHE_MIB is {shown!r}; give a whole number, 0 or more"


def test_measurements_have_a_folder_of_their_own():
    assert Config.from_environment({"PORTAKERNEL_TUNING_DIR": " /var/tuning "}).tuning_dir == "/var/tuning"
    assert Config.from_environment({}).tuning_dir is None


def test_a_policy_file_is_named_by_its_path_and_several_by_theirs():
    first, second = "/etc/my policy.yaml", "host.yaml"
    assert Config.from_environment({"PORTAKERNEL_POLICY": f" {first} "}).policy == (first,)
    several = os.pathsep.join([first, "", f" {second} ", ""])
    assert Config.from_environment({"PORTAKERNEL_POLICY": several}).policy == (first, second)


def test_a_path_may_begin_in_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/where/i/live")
    policy = os.pathsep.join(["~/base.yaml", "/etc/~/host.yaml", " ~/host.yaml"])
    config = Config.from_environment({"PORTAKERNEL_CACHE_DIR": "~/kernels", "PORTAKERNEL_POLICY": policy})
    assert config.cache_dir == "/where/i/live/kernels"
    assert config.policy == ("/where/i/live/base.yaml", "/etc/~/host.yaml", "/where/i/live/host.yaml")


def test_properties_can_be_required_and_one_that_does_not_exist_is_refused():
    assert Config.from_environment({"PORTAKERNEL_REQUIRE": "deterministic, inplace"}).require == (
        "deterministic",
        "inplace",
    )
    with pytest.raises(ConfigError) as caught:
        Config.from_environment({"PORTAKERNEL_REQUIRE": "determinism"})
    assert str(caught.value) == "PORTAKERNEL_REQUIRE is 'determinism'; did you mean 'deterministic'?"


def test_every_wrong_value_of_every_variable_is_told():
    wrong = {"REQUIRE": "fast,inplace,good,determinism", "LOG": "all", "CACHE_MIB": "many", "PLUGINS": "triton.add"}
    with pytest.raises(ConfigError) as caught:
        Config.from_environment({f"PORTAKERNEL_{name}": value for name, value in wrong.items()})
    assert str(caught.value).splitlines() == [
        "PORTAKERNEL_REQUIRE is 'fast' and 'good'; known: batch_invariant, deterministic, graph_capture, inplace",
        "PORTAKERNEL_REQUIRE is 'determinism'; did you mean 'deterministic'?",
        "PORTAKERNEL_PLUGINS names the kernel 'triton.add'; it takes plugins, such as 'triton'",
        "PORTAKERNEL_LOG is 'all'; known: summary",
        "PORTAKERNEL_CACHE_MIB is 'many'; give a whole number, 0 or more",
    ]


def test_a_list_of_plugins_takes_plugins():
    assert Config.from_environment({"PORTAKERNEL_PLUGINS": "torch, triton"}).plugins == ("torch", "triton")
    with pytest.raises(ConfigError) as caught:
        Config.from_environment({"PORTAKERNEL_PLUGINS": "torch,triton.add"})
    said = "PORTAKERNEL_PLUGINS names the kernel 'triton.add'; it takes plugins, such as 'triton'"
    assert str(caught.value) == said


def test_a_list_that_names_no_plugin_is_refused():
    with pytest.raises(ConfigError) as caught:
        Config.from_environment({"PORTAKERNEL_PLUGINS": ", ,"})
    assert str(caught.value) == "PORTAKERNEL_PLUGINS is ', ,', which names no plugin; name some, or unset it"


def test_a_misspelt_variable_is_told_with_the_nearest():
    set_here = {"PORTAKERNEL_PREFERS": "x", "PORTAKERNEL_ZZZ": "x", "PORTAKERNEL_USE": "x", "PORTA": "x"}
    first, second = unknown_variables(set_here)
    nearest = "did you mean 'PORTAKERNEL_PREFER' or 'PORTAKERNEL_REFERENCE' or 'PORTAKERNEL_RECORD'?"
    assert first == f"PORTAKERNEL_PREFERS is set, but no such variable exists; {nearest}"
    assert second.startswith("PORTAKERNEL_ZZZ is set, but no such variable exists; ")


def test_the_processs_environment_is_read_when_none_is_given(monkeypatch):
    monkeypatch.setenv("PORTAKERNEL_USE", "triton")
    monkeypatch.setenv("PORTAKERNEL_PREFERED", "triton")
    assert Config.from_environment().use == ("triton",)
    assert [text.partition(" ")[0] for text in unknown_variables()] == ["PORTAKERNEL_PREFERED"]


def test_an_op_where_a_kernel_is_wanted_is_answered_with_its_kernels(world):
    world.plugin("a")
    world.plugin("b", {"name": "fast"})
    with pytest.raises(UnknownNameError) as caught:
        world.dispatcher(USE="add")
    assert str(caught.value) == (
        "PORTAKERNEL_USE: unknown kernel or plugin 'add'; that is an op, whose kernels are a.add, b.fast, reference.add"
    )


def test_a_name_that_nothing_has_is_refused_under_use_when_the_dispatcher_is_made(world):
    world.plugin("p")
    with pytest.raises(UnknownNameError) as caught:
        world.dispatcher(USE="p,p.ad")
    assert str(caught.value) == "PORTAKERNEL_USE: unknown kernel or plugin 'p.ad'; did you mean 'p.add'?"


def test_a_preference_for_what_nothing_has_is_left_out_with_one_warning(world):
    world.plugin("p", {"priority": 9}, {"op": "rms_norm"})
    world.plugin("q")
    dispatcher = world.dispatcher(PREFER="p.ad,q")
    with pytest.warns(ConfigWarning) as caught:
        decision = dispatcher.decide(world.request())
    assert (decision.chosen.name, decision.why) == ("q.add", "PORTAKERNEL_PREFER prefers it")
    said = "PORTAKERNEL_PREFER: unknown kernel or plugin 'p.ad'; did you mean 'p.add' or 'q.add'?"
    advice = " The preference is left out: correct the name, or install what has it"
    assert [str(warning.message) for warning in caught] == [said + advice]
    dispatcher.decide(world.request("rms_norm"))
    dispatcher.decide(world.request())


@pytest.mark.parametrize("key", ["DENY", "DISABLE"])
def test_what_is_not_there_is_denied_and_disabled_without_a_word(world, key):
    world.plugin("p")
    assert world.dispatcher(**{key: "p.ad,elsewhere"}).decide(world.request()).chosen.name == "p.add"


@pytest.mark.parametrize("name", ["p", "p.add", "acme", "reference", "reference.add"])
def test_plugins_kernels_and_backends_can_be_disabled(world, name):
    world.plugin("p")
    assert world.dispatcher(DISABLE=name).process.disabled == {name}


@pytest.mark.parametrize("hook", ["portakernel_kernels", "portakernel_decided"])
def test_a_plugin_that_lists_no_kernels_can_be_disabled_and_is_then_not_imported(world, hook):
    package = world.site.package(
        "h", plugin={"schema_version": 1, "plugin": "h", "hooks": [hook]}, source="raise SystemExit('imported')"
    )
    world.packages.append(package)
    dispatcher = world.dispatcher(DISABLE="h")
    dispatcher.announce(dispatcher.decide(world.request()))
    assert "fake_h" not in sys.modules


def test_a_broken_plugin_can_be_disabled(world):
    package = world.site.package("bad", plugin="colour: red\n")
    disabled = frozenset({"bad"})
    registry = Registry(PluginManager([*world.packages, package], disabled=disabled))
    assert Dispatcher(registry, Config(disable=("bad",))).process.disabled == {"bad"}


def test_a_disabled_plugin_is_a_reason_and_is_not_imported(world):
    world.plugin("p", {"priority": 9}, source="raise SystemExit('imported')", ready="fake_p:ready")
    world.plugin("q")
    decision = world.dispatcher(DISABLE="p").decide(world.request(present=True))
    assert decision.chosen.name == "q.add"
    (rejection,) = decision.candidate("p.add").rejections
    assert (rejection.code, rejection.text) == ("disabled", "PORTAKERNEL_DISABLE names p")
    assert "fake_p" not in sys.modules


def test_one_kernel_can_be_disabled(world):
    world.plugin("p", {"priority": 9}, {"name": "other"})
    decision = world.dispatcher(DISABLE="p.add").decide(world.request())
    assert decision.chosen.name == "p.other"
    assert [r.text for r in decision.candidate("p.add").rejections] == ["PORTAKERNEL_DISABLE names p.add"]


def test_a_disabled_backends_devices_are_not_looked_for_but_its_targets_are_known(world):
    world.packages.clear()
    world.backend("acme", lines=[["acme1"]], source="raise SystemExit('imported')")
    world.plugin("p")
    dispatcher = world.dispatcher(DISABLE="acme")
    assert dispatcher.registry.devices == ()
    assert dispatcher.decide(world.request()).chosen.name == "p.add"
    assert dispatcher.registry.manager.broken == []
