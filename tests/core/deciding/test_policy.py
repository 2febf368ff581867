"""Layers of wishes: which source decides, and what adds up."""

from __future__ import annotations

import threading

import pytest

from portakernel.claims.capability import ReasonCode
from portakernel.deciding.policies import Layer, Place, Scope, intern_policy, make_layer
from portakernel.errors import ConfigError, ConfigWarning, PortakernelError, UnknownNameError
from portakernel.words.arch import Selector
from portakernel.words.target import Target

ACME = Target("acme", "acme1")
EVERY_CALL = [("add", "acme1"), ("add", "acme2"), ("rms_norm", "acme1"), ("rms_norm", "acme2")]


@pytest.fixture
def dispatcher(world):
    """Kernels ``a.add`` (20), ``b.add`` (10), ``a.rms_norm``, ``b.rms_norm`` and ``b.second`` (an ``add``, 5)."""
    world.plugin("a", {"priority": 20}, {"op": "rms_norm", "priority": 20})
    world.plugin("b", {"priority": 10}, {"op": "rms_norm", "priority": 10}, {"name": "second", "priority": 5})
    return world.dispatcher()


def layers(*named: dict) -> object:
    """A policy of layers, strongest first, called one, two, ..."""
    words = ("one", "two", "three", "four")
    return intern_policy(tuple(make_layer(word, **wishes) for word, wishes in zip(words, named, strict=False)))


def chosen(world, dispatcher, *named: dict, op: str = "add") -> str | None:
    decision = dispatcher.decide(world.request(op), layers(*named))
    return decision.chosen.name if decision.chosen else None


@pytest.mark.parametrize(
    ("named", "add", "rms_norm"),
    [
        ([], "a.add", "a.rms_norm"),
        ([{"prefer": "b"}], "b.add", "b.rms_norm"),
        ([{"prefer": "b.add"}], "b.add", "a.rms_norm"),
        ([{"prefer": ["b.second", "b"]}], "b.second", "b.rms_norm"),
        ([{"use": "b.second"}], "b.second", "a.rms_norm"),
        ([{"deny": "a"}], "b.add", "b.rms_norm"),
        ([{"use": "a.add"}, {"use": "b"}], "a.add", "b.rms_norm"),
        ([{"prefer": "b.add"}, {"use": "a"}], "b.add", "a.rms_norm"),
        ([{"prefer": "a.add"}, {"prefer": "b"}], "a.add", "b.rms_norm"),
        ([{}, {}, {"use": "b"}], "b.add", "b.rms_norm"),
        ([{"deny": "a.rms_norm"}, {"use": "b.add"}], "b.add", "b.rms_norm"),
        ([{"prefer": "reference"}], "reference.add", "reference.rms_norm"),
        ([{"use": "reference.add", "reference": "forbid"}], "reference.add", "a.rms_norm"),
    ],
)
def test_the_strongest_layer_that_mentions_an_op_decides_for_it(world, dispatcher, named, add, rms_norm):
    assert chosen(world, dispatcher, *named) == add
    assert chosen(world, dispatcher, *named, op="rms_norm") == rms_norm


def test_denials_of_all_layers_add_up_even_under_a_layer_that_decides(world, dispatcher):
    policy = layers({"prefer": "b.second", "deny": "a.add"}, {"deny": "b.second"}, {"deny": ["b.add", "a.add"]})
    with pytest.warns(ConfigWarning) as caught:
        decision = dispatcher.decide(world.request(), policy)
    said = "one: prefer: 'b.second' cannot go first: two denies it."
    assert [str(w.message) for w in caught] == [f"{said} The preference is left out: take one of the two back"]
    assert decision.chosen.name == "reference.add"
    texts = {name: [r.text for r in decision.candidate(name).rejections] for name in ("a.add", "b.add", "b.second")}
    assert texts == {"a.add": ["denied by one"], "b.add": ["denied by three"], "b.second": ["denied by two"]}


def test_a_denial_beats_a_use_from_any_layer(world, dispatcher):
    assert chosen(world, dispatcher, {"use": "a.add"}, {"deny": "a"}) is None
    assert chosen(world, dispatcher, {"deny": "a"}, {"use": "a.add"}) is None


def test_requirements_of_all_layers_add_up(world, dispatcher):
    policy = layers({"require": "deterministic"}, {}, {"require": ["batch_invariant", "deterministic"]})
    wishes = policy.wishes("add", ACME, dispatcher.registry)
    assert wishes.require == {"deterministic": "one", "batch_invariant": "three"}
    decision = dispatcher.decide(world.request(), policy)
    assert decision.request.requires == {"deterministic", "batch_invariant"}
    assert [(rejection.code, rejection.text) for rejection in decision.candidate("a.add").rejections] == [
        (
            ReasonCode.NOT_BATCH_INVARIANT,
            "does not promise a row's result independent of the other rows (required by three)",
        ),
        (ReasonCode.NOT_DETERMINISTIC, "does not promise equal results from run to run (required by one)"),
    ]


@pytest.mark.parametrize(
    ("named", "mode", "source"),
    [
        ([], "warn", "default"),
        ([{}, {"reference": "forbid"}], "forbid", "two"),
        ([{"reference": "allow"}, {"reference": "forbid"}], "allow", "one"),
        ([{"reference": "warn"}, {"reference": "forbid"}], "warn", "one"),
    ],
)
def test_the_strongest_layer_that_speaks_of_the_reference_decides(dispatcher, named, mode, source):
    wishes = layers(*named).wishes("add", ACME, dispatcher.registry)
    assert (wishes.reference, wishes.reference_source) == (mode, source)


@pytest.mark.parametrize(
    ("scope", "shown", "covered"),
    [
        (Scope(), "", EVERY_CALL),
        (Scope("add"), "add", [("add", "acme1"), ("add", "acme2")]),
        (Scope(vendor="acme"), "acme", EVERY_CALL),
        (Scope("add", "acme", Selector(("acme2",))), "add on acme:acme2", [("add", "acme2")]),
        (Scope("add", "acme", Selector(("acme1+",))), "add on acme:acme1+", [("add", "acme1"), ("add", "acme2")]),
        (Scope(vendor="other"), "other", []),
    ],
    ids=str,
)
def test_a_layer_may_be_about_one_op_and_some_targets(world, dispatcher, scope, shown, covered):
    policy = intern_policy((Layer("x", prefer=("b",), scope=scope),))
    decisions = {call: dispatcher.decide(world.request(call[0], f"acme:{call[1]}"), policy) for call in EVERY_CALL}
    assert [call for call, decision in decisions.items() if decision.chosen.plugin == "b"] == covered
    assert str(scope) == shown


def test_kernels_named_for_any_target_are_those_of_use_and_prefer(dispatcher):
    first = Layer("x", use=("a",), deny=("b.second",), scope=Scope(vendor="acme", archs=Selector(("acme2",))))
    policy = intern_policy((first, Layer("y", prefer=("b.add",), scope=Scope("add"))))
    assert policy.named("add", dispatcher.registry) == {"a.add", "b.add"}
    assert policy.named("rms_norm", dispatcher.registry) == {"a.rms_norm"}


def test_reasons_name_a_wishs_own_place_before_its_source(world, dispatcher):
    places = (Place("deny", "a", "file:3"), Place("prefer", "b.second", "file:5"))
    policy = intern_policy((Layer("file", prefer=("b.second", "b"), deny=("a", "reference"), places=places),))
    decision = dispatcher.decide(world.request(), policy)
    assert decision.why == "file:5 prefers it"
    assert [r.text for r in decision.candidate("a.add").rejections] == ["denied by file:3"]
    assert [r.text for r in decision.candidate("reference.add").rejections] == ["denied by file"]


def test_where_a_wish_stands_is_no_part_of_what_a_compiled_graph_depends_on(dispatcher):
    tokens = []
    for line in (3, 4):
        layer = Layer("file", deny=("a",), places=(Place("deny", "a", f"file:{line}"),))
        dispatcher.set_process_layer(layer)
        dispatcher.refresh_trace_token()
        tokens.append(dispatcher.trace_token)
    assert tokens[0] == tokens[1]


def test_sources_stand_in_their_order(world):
    """Argument, innermost context, outer context, process, environment."""
    names = ["argument", "inner", "outer", "process", "environment"]
    for name in names:
        world.plugin(name)
    dispatcher = world.dispatcher(USE="environment")
    dispatcher.set_process_layer(make_layer("set_policy", use="process"))
    outer, inner = make_layer("context", use="outer"), make_layer("context", use="inner")
    argument = make_layer("argument", use="argument")
    request = world.request()
    assert dispatcher.decide(request).chosen.name == "process.add"
    dispatcher.context_layers.set((outer,))
    assert dispatcher.decide(request).chosen.name == "outer.add"
    dispatcher.context_layers.set((inner, outer))
    assert dispatcher.decide(request).chosen.name == "inner.add"
    assert dispatcher.decide(request, dispatcher.policy(argument)).chosen.name == "argument.add"
    dispatcher.context_layers.set(())
    dispatcher.set_process_layer(None)
    assert dispatcher.decide(request).chosen.name == "environment.add"
    assert dispatcher.decide(request).why == "PORTAKERNEL_USE uses it"


def test_equal_policies_are_one_object(dispatcher):
    first = dispatcher.policy(make_layer("argument", use="a.add", require=["deterministic", "inplace"]))
    again = dispatcher.policy(make_layer("argument", use=("a.add",), require=["inplace", "deterministic"]))
    assert first is again
    assert dispatcher.policy() is dispatcher.policy() is dispatcher.process_policy
    other = dispatcher.policy(make_layer("argument", use="b.add"))
    assert other is not first
    dispatcher.set_process_layer(make_layer("set_policy", deny="a"))
    changed = dispatcher.process_policy
    dispatcher.set_process_layer(None)
    dispatcher.set_process_layer(make_layer("set_policy", deny="a"))
    assert dispatcher.process_policy is changed


def test_a_policy_cannot_be_changed(dispatcher):
    with pytest.raises(AttributeError):
        dispatcher.process_policy.layers = ()
    with pytest.raises(AttributeError):
        make_layer("x").use = ("a",)


def test_another_process_policy_has_another_trace_token_and_the_same_one_the_same(dispatcher):
    dispatcher.refresh_trace_token()
    without = dispatcher.trace_token
    dispatcher.set_process_layer(make_layer("set_policy", deny="a"))
    assert dispatcher.trace_token != without
    dispatcher.set_process_layer(None)
    assert dispatcher.trace_token == without


@pytest.mark.parametrize("key", ["use", "prefer", "deny"])
def test_a_layer_names_what_exists(dispatcher, key):
    layer = make_layer("context", **{key: ["a", "a.ad"]})
    with pytest.raises(UnknownNameError) as caught:
        layer.check(dispatcher.registry)
    assert str(caught.value) == f"context: {key}: unknown kernel or plugin 'a.ad'; did you mean 'a.add' or 'b.add'?"


def test_a_process_policy_that_uses_what_nothing_has_is_refused_and_the_one_before_stays(dispatcher):
    before = dispatcher.process_policy
    with pytest.raises(UnknownNameError):
        dispatcher.set_process_layer(make_layer("set_policy", use="a.ad"))
    assert dispatcher.process_policy is before


def test_a_layer_is_made_of_one_name_or_several():
    assert make_layer("x", use="a", prefer=["b", "c"], deny=("d",)) == Layer("x", ("a",), ("b", "c"), ("d",))


def test_what_can_be_required_is_listed():
    with pytest.raises(UnknownNameError) as caught:
        make_layer("context", require="determinism")
    assert str(caught.value) == "context: unknown property 'determinism'; did you mean 'deterministic'?"


def test_the_references_modes_are_listed():
    with pytest.raises(UnknownNameError) as caught:
        make_layer("context", reference="never")
    assert str(caught.value) == "context: unknown reference mode 'never'; known: allow, forbid, warn"


@pytest.mark.parametrize("value", [["a", 5], (None,)])
def test_names_are_text(value):
    with pytest.raises(ConfigError) as caught:
        make_layer("context", use=value)
    assert str(caught.value) == f"context: use takes names of kernels or plugins as strings; this is {value!r}"


@pytest.mark.parametrize("value", [5, None])
def test_what_is_no_name_at_all_is_refused_in_our_own_words(value):
    with pytest.raises(PortakernelError) as caught:
        make_layer("context", use=value)
    assert str(caught.value) == f"context: use takes names of kernels or plugins as strings; this is {value!r}"


def test_a_thread_does_not_see_another_threads_context(world, dispatcher):
    seen = []
    dispatcher.context_layers.set((make_layer("context", use="b"),))
    thread = threading.Thread(target=lambda: seen.append(dispatcher.decide(world.request()).chosen.name))
    thread.start()
    thread.join()
    assert seen == ["a.add"]
    assert dispatcher.decide(world.request()).chosen.name == "b.add"
