"""Kernels built from a manifest, checked against the ops' contracts and the vendors' archs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from portakernel.claims.capability import Limit
from portakernel.claims.request import Phase
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.errors import ManifestError, PortakernelError
from portakernel.manifest.loading import load_manifest
from portakernel.manifest.models import PluginManifest
from portakernel.registry.kernel import Kernel, Priority, PriorityRule, load_entry
from portakernel.registry.manifest_kernels import plugin_kernels, resting_entries
from portakernel.words.arch import ArchSpace, Selector
from portakernel.words.target import Target

SPACES = {
    "nvidia": ArchSpace("nvidia", (("sm_80", "sm_90", "sm_100"),), {"hopper": ("sm_90",)}),
    "amd": ArchSpace("amd", (("gfx90a", "gfx942"),), {"cdna3": ("gfx942",)}),
}
HEAD = "schema_version: 1\nplugin: p\n"
ADD = """\
kernels:
  - op: add
    entry: fake_p.add:run
    targets: {nvidia: sm_80+}
    dtypes: {x: [float32], y: [x]}
"""
NEVER = (
    "p.yaml:9: kernels[0].priority[0]: has no `when`, `values`, `features`, `without`, `phases` or `targets`, so that"
    " the rules after it never apply"
)
NORM = """\
kernels:
  - op: rms_norm
    entry: fake_p:run
    targets: {nvidia: sm_80+}
    dtypes: {x: [float32, bfloat16], weight: [x, float32]}
"""

LINEAR = """\
kernels:
  - op: linear_act
    entry: fake_p:run
    targets: {nvidia: sm_80+}
    dtypes: {x: [float32], weight: [x], bias: [x]}
"""

Build = Callable[..., tuple[Kernel, ...]]


@pytest.fixture
def build(site) -> Build:
    def build(body: str) -> tuple[Kernel, ...]:
        package = site.package("p", plugin=HEAD + body)
        loaded = load_manifest(PluginManifest, package.folder / "plugin.yaml", strict=True, shown_as="p.yaml")
        return plugin_kernels(package, loaded, SPACES)

    return build


def problems(build: Build, body: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        build(body)
    assert caught.value.path == "p.yaml"
    return list(caught.value.problems)


def test_a_kernel_is_what_its_entry_says(build):
    (kernel,) = build(ADD)
    assert (kernel.name, kernel.op, kernel.plugin, kernel.entry) == ("p.add", "add", "p", "fake_p.add:run")
    assert (kernel.backward, kernel.saves, kernel.check, kernel.disabled, kernel.ready) == (
        None,
        "none",
        None,
        None,
        None,
    )
    assert not kernel.first_party
    assert not kernel.is_reference
    ((name, capability),) = kernel.variants
    assert name == ""
    assert capability.targets == {"nvidia": Selector(("sm_80+",))}
    assert capability.dtypes == {"x": ("float32",), "y": ("x",)}


@pytest.mark.parametrize("ours", [True, False])
def test_a_kernel_is_first_party_when_its_package_is_and_not_by_the_name_of_its_distribution(site, ours):
    package = site.package("p", plugin=HEAD + ADD, distribution="portakernel", first_party=ours)
    loaded = load_manifest(PluginManifest, package.folder / "plugin.yaml", strict=True)
    assert plugin_kernels(package, loaded, SPACES)[0].first_party is ours


def test_an_entry_for_an_op_that_nobody_has_rests_beside_the_others(site, build):
    body = ADD + ADD.replace("kernels:\n", "").replace("op: add", "op: ad")
    (kernel,) = build(body)
    assert kernel.name == "p.add"
    package = site.package("q", plugin=(HEAD + body).replace("plugin: p", "plugin: q"))
    loaded = load_manifest(PluginManifest, package.folder / "plugin.yaml", strict=True, shown_as="q.yaml")
    (text,) = resting_entries(loaded)
    assert text.startswith("q.yaml:")
    assert "kernels[1].op: no op here is called 'ad'; did you mean 'add'?" in text
    assert text.endswith("The entry rests: upgrade portakernel, or install what ships the op")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            ADD.replace("y: [x]}", "y: [x], z: [x]}"),
            ["p.yaml:7: kernels[0].dtypes.z: unknown tensor argument 'z'; known: x, y"],
        ),
        (
            ADD.replace(", y: [x]", ""),
            ["p.yaml:7: kernels[0].dtypes: lacks y: x, y each need their dtypes"],
        ),
        (
            ADD.replace("    dtypes: {x: [float32], y: [x]}\n", ""),
            [
                "p.yaml:4: kernels[0].dtypes: lacks x: x, y each need their dtypes",
                "p.yaml:4: kernels[0].dtypes: lacks y: x, y each need their dtypes",
            ],
        ),
        (
            ADD.replace("[float32]", "[float32, float61]"),
            [
                (
                    "p.yaml:7: kernels[0].dtypes.x[1]: unknown dtype 'float61'; did you mean 'float64' or"
                    " 'float16' or 'bfloat16'?"
                )
            ],
        ),
        (
            NORM + "    features: [weight_offset, weight_ofset]\n",
            ["p.yaml:8: kernels[0].features[1]: unknown feature 'weight_ofset'; did you mean 'weight_offset'?"],
        ),
        (
            NORM + "    features: [eps]\n",
            ["p.yaml:8: kernels[0].features[0]: unknown feature 'eps'; known: weight_offset"],
        ),
        (
            ADD + "    limits:\n      N: {max: 3}\n",
            [
                (
                    "p.yaml:9: kernels[0].limits.N: unknown dimension or layout fact 'N'; known: M,"
                    " x.alignment, x.contiguous,"
                    " x.flat_rows, x.stride_last, y.alignment, y.contiguous, y.flat_rows, y.stride_last"
                )
            ],
        ),
        (
            ADD + "    limits:\n      x.alignmnt: {min: 16}\n",
            [
                (
                    "p.yaml:9: kernels[0].limits.x.alignmnt: unknown dimension or layout fact 'x.alignmnt';"
                    " did you mean 'x.alignment' or 'y.alignment'?"
                )
            ],
        ),
        (
            ADD.replace("fake_p.add:run", "fake_q.add:run"),
            ["p.yaml:5: kernels[0].entry: 'fake_q.add:run' is outside the plugin's own package 'fake_p'"],
        ),
        (
            ADD.replace("fake_p.add:run", "fake_private:run"),
            ["p.yaml:5: kernels[0].entry: 'fake_private:run' is outside the plugin's own package 'fake_p'"],
        ),
        (
            ADD.replace("fake_p.add:run", "os:system"),
            ["p.yaml:5: kernels[0].entry: 'os:system' is outside the plugin's own package 'fake_p'"],
        ),
        (
            NORM + "    backward: os:system\n",
            ["p.yaml:8: kernels[0].backward: 'os:system' is outside the plugin's own package 'fake_p'"],
        ),
        (
            NORM + "    check: {entry: os:system, reads: [N]}\n",
            ["p.yaml:8: kernels[0].check.entry: 'os:system' is outside the plugin's own package 'fake_p'"],
        ),
        (
            NORM + "    check: {entry: 'fake_p:check', reads: [N, K]}\n",
            [
                (
                    "p.yaml:8: kernels[0].check.reads[1]: unknown dimension, fact or parameter 'K'; known: M, N,"
                    " eps, weight.alignment, weight.contiguous, weight.flat_rows, weight.stride_last, weight_offset,"
                    " x.alignment, x.contiguous, x.flat_rows, x.stride_last"
                )
            ],
        ),
        (
            "ready: os:system\n" + ADD,
            ["p.yaml:3: ready: 'os:system' is outside the plugin's own package 'fake_p'"],
        ),
        (
            "modes: {m: {context: 'os:system', torch_device: cpu}}\n" + ADD,
            ["p.yaml:3: modes.m.context: 'os:system' is outside the plugin's own package 'fake_p'"],
        ),
        (
            ADD + ADD.removeprefix("kernels:\n"),
            ["p.yaml:8: kernels[1]: is a second kernel named 'p.add'; give it a `name` of its own"],
        ),
        (
            ADD + "    backward: fake_p:back\n",
            ["p.yaml:8: kernels[0].backward: op add has no backward kernel (its gradient is: identity)"],
        ),
        (
            ADD.replace("    targets: {nvidia: sm_80+}\n", ""),
            ["p.yaml:4: kernels[0]: claims no targets; add `targets:` to it or to `defaults:`"],
        ),
        (
            ADD.replace("sm_80+", "sm_8+"),
            [
                (
                    "p.yaml:6: kernels[0].targets.nvidia: unknown nvidia arch 'sm_8'; did you mean 'sm_80' or"
                    " 'sm_90' or 'sm_100'?"
                )
            ],
        ),
        (
            ADD.replace("sm_80+", "{in: [sm_80+], not: [hoper]}"),
            ["p.yaml:6: kernels[0].targets.nvidia.not[0]: unknown nvidia arch 'hoper'; did you mean 'hopper'?"],
        ),
        (
            ADD.replace("sm_80+", "sm_90..sm_80"),
            [
                (
                    "p.yaml:6: kernels[0].targets.nvidia: range 'sm_90..sm_80' is not within one line of"
                    " nvidia's archs, oldest first"
                )
            ],
        ),
        (
            ADD + "    priority:\n      - {priority: 3}\n      - {when: {M: {max: 9}}, priority: 4}\n",
            [NEVER],
        ),
        (
            ADD + "    priority:\n      - {targets: {}, priority: 70}\n      - {priority: 4}\n",
            [NEVER],
        ),
        (
            ADD + "    priority:\n      - {when: {K: {max: 9}}, priority: 4}\n",
            ["p.yaml:9: kernels[0].priority[0].when.K: unknown dimension 'K'; known: M"],
        ),
        (
            ADD + "    formats: {z: [row]}\n",
            ["p.yaml:8: kernels[0].formats.z: unknown tensor with a scale format 'z'; none is known"],
        ),
    ],
)
def test_what_does_not_fit_the_contract_is_told_with_line_and_path(build, body, expected):
    assert problems(build, body) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            "{activations: [relu]}",
            "unknown parameter with values to choose from 'activations'; did you mean 'activation'?",
        ),
        (
            "{activation: [relu, tanh]}",
            "op linear_act takes 'none' or 'relu' or 'gelu' or 'gelu_tanh' or 'silu' for activation, not 'tanh'",
        ),
        ("{activation: [true]}", "not True"),
    ],
)
def test_values_are_claimed_of_parameters_as_the_op_takes_them(build, values, expected):
    (problem,) = problems(build, LINEAR + f"    values: {values}\n")
    assert problem.startswith("p.yaml:8: kernels[0].values.")
    assert problem.endswith(expected)


def test_values_that_are_claimed_tell_calls_apart(build):
    (kernel,) = build(LINEAR + "    values: {activation: [none, relu]}\n")
    assert kernel.variants[0][1].values == {"activation": ("none", "relu")}
    assert kernel.reads() == {"activation"}


def test_every_problem_is_told_at_once(build):
    body = NORM.replace("sm_80+", "sm_8+").replace("weight:", "wait:").replace("fake_p:run", "os:system")
    assert len(problems(build, body)) == 4


@pytest.mark.parametrize(("key", "line"), [("targets: {nvidia: sm_8+}", 5), ("limits: {Q: {max: 3}}", 5)])
def test_what_defaults_get_wrong_is_blamed_on_their_line(build, key, line):
    body = f"defaults:\n  priority: 3\n  {key}\n" + ADD
    if key.startswith("targets"):
        body = body.replace("    targets: {nvidia: sm_80+}\n", "")
    (problem,) = problems(build, body)
    assert problem.startswith(f"p.yaml:{line}: defaults.")


def test_a_problem_in_a_variant_is_found_by_its_line(build):
    body = NORM + "    variants:\n      - {name: a}\n      - {name: b, features: [nope]}\n"
    message = "p.yaml:10: kernels[0].variants[1].features[0]: unknown feature 'nope'; known: weight_offset"
    assert problems(build, body) == [message]


def test_a_vendor_that_no_backend_knows_is_accepted_for_its_backend_may_come_later(build):
    (kernel,) = build(ADD.replace("{nvidia: sm_80+}", "{opencl: any, nvidia: sm_80+}"))
    assert list(kernel.variants[0][1].targets) == ["opencl", "nvidia"]


def test_defaults_hold_where_a_kernel_does_not_say_otherwise(build):
    body = """\
defaults:
  targets: {nvidia: sm_80+}
  properties: {deterministic: true, inplace: true, graph_capture: false}
  features: [weight_offset]
  prebuilt: true
  priority: 7
kernels:
  - op: rms_norm
    entry: fake_p:run
    dtypes: {x: [float32], weight: [x]}
  - op: rms_norm
    name: other
    entry: fake_p:run
    dtypes: {x: [float32], weight: [x]}
    targets: {amd: cdna3}
    properties: {batch_invariant: true}
    features: []
    prebuilt: false
    priority: 9
"""
    first, second = build(body)
    one, two = first.variants[0][1], second.variants[0][1]
    assert one.targets == {"nvidia": Selector(("sm_80+",))}
    assert (one.properties, one.features, one.prebuilt) == ({"deterministic", "inplace"}, {"weight_offset"}, True)
    assert two.targets == {"amd": Selector(("cdna3",))}
    assert (two.properties, two.features, two.prebuilt) == ({"batch_invariant"}, frozenset(), False)
    request = ask(contract("rms_norm"), Target("nvidia", "sm_90"))
    assert (first.priority.of(request), second.priority.of(request)) == (7, 9)


def test_a_priority_of_zero_beats_the_defaults(build):
    (kernel,) = build("defaults: {priority: 7}\n" + ADD + "    priority: 0\n")
    assert kernel.priority.of(ask(contract("add"), Target("nvidia", "sm_90"))) == 0


@pytest.mark.parametrize(("m", "expected"), [(1, 70), (64, 70), (65, 60), (1024, 60), (1025, 50), (None, 50)])
def test_priority_may_depend_on_dimensions_and_a_rule_over_an_unknown_one_does_not_apply(build, m, expected):
    rules = (
        "    priority:\n      - {when: {M: {max: 64}}, priority: 70}\n      - {when: {M: {max: 1024}}, priority: 60}\n"
    )
    (kernel,) = build(ADD + rules + "      - {priority: 50}\n")
    shapes = None if m is None else {"x": (m,)}
    assert kernel.priority.of(ask(contract("add"), Target("nvidia", "sm_90"), shapes=shapes)) == expected
    assert kernel.priority.limits() == {Limit("M", max=64), Limit("M", max=1024)}


def test_priority_may_depend_on_the_target_and_holds_for_listed_archs_alone(build):
    rules = "    priority:\n      - {targets: {nvidia: sm_90+, amd: cdna3}, when: {M: {min: 8}}, priority: 70}\n"
    (kernel,) = build(ADD + rules + "      - {priority: 50}\n")
    for target, m, expected in (
        (Target("nvidia", "sm_90"), 8, 70),
        (Target("nvidia", "sm_90"), 7, 50),
        (Target("nvidia", "sm_80"), 8, 50),
        (Target("nvidia", "sm_999"), 8, 50),
        (Target("amd", "gfx942"), 8, 70),
    ):
        assert kernel.priority.of(ask(contract("add"), target, shapes={"x": (m,)})) == expected, target
    assert re.fullmatch(r"70 on amd:gfx94\S.*nvidia:sm_90.* where M >= 8, 50", str(kernel.priority))


@pytest.mark.parametrize(
    ("activation", "m", "expected"),
    [("relu", 8, 70), ("silu", 8, 70), ("gelu", 8, 50), ("relu", 7, 50), ("none", 9, 50)],
)
def test_priority_may_depend_on_values_which_then_tell_calls_apart(build, activation, m, expected):
    rule = "{when: {M: {min: 8}}, values: {activation: [relu, silu]}, priority: 70}"
    (kernel,) = build(LINEAR + f"    priority: [{rule}, {{priority: 50}}]\n")
    shapes = {"x": (m, 4), "weight": (5, 4), "bias": (5,)}
    values = {"activation": activation}
    request = ask(contract("linear_act"), Target("nvidia", "sm_90"), shapes=shapes, values=values)
    assert kernel.priority.of(request) == expected
    assert kernel.reads() == {"activation"}
    assert str(kernel.priority) == "70 where M >= 8 and activation is 'relu' or 'silu', 50"


def test_priority_may_depend_on_the_phase(build):
    (kernel,) = build(ADD + "    priority: [{phases: [inference, training], priority: 7}, {priority: 3}]\n")
    for phase, expected in ((Phase.INFERENCE, 7), (Phase.TRAINING, 7), (Phase.BACKWARD, 3)):
        assert kernel.priority.of(ask(contract("add"), Target("nvidia", "sm_90"), phase=phase)) == expected
    assert str(kernel.priority) == "7 where the phase is inference or training, 3"


def test_priority_may_depend_on_what_a_call_asks_for(build):
    rules = "priority: [{features: [weight_offset], priority: 7}, {priority: 3}]"
    (kernel,) = build(NORM + f"    features: [weight_offset]\n    {rules}\n")
    for offset, expected in ((0.0, 3), (1.0, 7)):
        request = ask(contract("rms_norm"), Target("nvidia", "sm_90"), values={"weight_offset": offset})
        assert kernel.priority.of(request) == expected
    assert str(kernel.priority) == "7 where weight_offset is asked for, 3"
    (other,) = build(NORM + f"    features: [weight_offset]\n    {rules.replace('features', 'without')}\n")
    for offset, expected in ((0.0, 7), (1.0, 3)):
        request = ask(contract("rms_norm"), Target("nvidia", "sm_90"), values={"weight_offset": offset})
        assert other.priority.of(request) == expected
    assert str(other.priority) == "7 where weight_offset is not asked for, 3"


def test_features_of_a_priority_are_those_of_the_op(build):
    (problem,) = problems(build, ADD + "    priority: [{features: [window], priority: 7}, {priority: 3}]\n")
    assert "priority[0].features[0]: unknown feature 'window'" in problem


def test_values_of_a_priority_are_those_that_the_op_takes(build):
    (problem,) = problems(build, LINEAR + "    priority: [{values: {activation: [tanh]}, priority: 3}]\n")
    assert problem.startswith("p.yaml:8: kernels[0].priority[0].values.")
    assert problem.endswith("for activation, not 'tanh'")


def test_targets_of_a_priority_are_looked_at_as_those_of_a_claim(build):
    with pytest.raises(ManifestError) as caught:
        build(ADD + "    priority: [{targets: {nvidia: sm_9x}, priority: 70}, {priority: 50}]\n")
    assert "sm_9x" in str(caught.value)


def test_no_priority_is_zero_as_is_the_lack_of_a_rule_that_applies(build):
    request = ask(contract("add"), Target("nvidia", "sm_90"), shapes={"x": (9,)})
    assert build(ADD)[0].priority.of(request) == 0
    assert build(ADD + "    priority: [{when: {M: {max: 8}}, priority: 5}]\n")[0].priority.of(request) == 0


@pytest.mark.parametrize(
    ("extra", "saves", "has_backward"),
    [
        ("", "none", False),
        ("    backward: fake_p:back\n", "contract", True),
        ("    saves: contract\n", "contract", False),
        ("    backward: fake_p:back\n    saves: own\n", "own", True),
        ("    backward: fake_p:back\n    saves: none\n", "none", True),
    ],
)
def test_a_kernel_with_a_backward_saves_what_the_contract_says_unless_told_otherwise(build, extra, saves, has_backward):
    (kernel,) = build(NORM + extra)
    capability = kernel.variants[0][1]
    assert (kernel.saves, capability.saves, capability.has_backward) == (saves, saves, has_backward)


VARIANTS = """\
kernels:
  - op: rms_norm
    entry: fake_p:run
    targets: {nvidia: sm_80+}
    dtypes: {x: [float32], weight: [x]}
    limits: {M: {max: 9}}
    variants:
      - {targets: {nvidia: sm_90+}, dtypes: {x: [bfloat16], weight: [x]}}
      - {name: tall, limits: {N: {max: 64}}, features: [weight_offset]}
"""


def test_a_variant_is_whole_with_each_key_its_own_or_the_kernels(build):
    (kernel,) = build(VARIANTS)
    (first, one), (second, two) = kernel.variants
    assert (first, second) == ("variant 1", "tall")
    assert (one.targets, one.dtypes["x"]) == ({"nvidia": Selector(("sm_90+",))}, ("bfloat16",))
    assert (one.limits, one.features) == ((Limit("M", max=9),), frozenset())
    assert (two.targets, two.dtypes["x"]) == ({"nvidia": Selector(("sm_80+",))}, ("float32",))
    assert (two.limits, two.features) == ((Limit("N", max=64),), {"weight_offset"})
    assert kernel.features == {"weight_offset"}
    assert kernel.limits() == {Limit("M", max=9), Limit("N", max=64)}


def test_an_entry_is_loaded_on_demand(site):
    site.package("p", source="def run():\n    return 3\nnumber = 5\n")
    assert load_entry("fake_p:run")() == 3
    with pytest.raises(PortakernelError, match=r"^fake_p has no function 'runn'; did you mean 'run'\?$"):
        load_entry("fake_p:runn")
    with pytest.raises(PortakernelError, match=r"^fake_p has no function 'number'; "):
        load_entry("fake_p:number")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'fake_p.nope'$"):
        load_entry("fake_p.nope:run")


def test_of_many_rules_a_table_says_what_they_range_over():
    few = Priority((PriorityRule(50, phases=(Phase.BACKWARD,)), PriorityRule(30)))
    assert few.summary == str(few) == "50 where the phase is backward, 30"
    assert Priority(few.rules * 3).summary == "30 to 50, by 6 rules of its manifest"
