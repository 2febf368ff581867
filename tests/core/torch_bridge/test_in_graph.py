"""The forms that kernels have in compiled graphs: which is chosen, what the graph then holds, and its numbers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from cxx import needs_cxx
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.custom_graph_pass import CustomGraphPass

from portakernel.claims.request import Phase
from portakernel.deciding.policies import make_layer
from portakernel.deciding.policy_block import PolicyBlock
from portakernel.errors import ArgumentTypeError, CompiledGraphError
from portakernel.registry.kernel import InGraphs, Priority, PriorityRule
from portakernel.torch_bridge.in_graph import CUSTOM_META

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    # torch's own compiler, on importing its parts
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]
INLINE, CALL = "rms_norm: reference.rms_norm, inline", "rms_norm: raw_kernels.rms_norm, call"


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def normal(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=grad)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def compiled(function, **options):
    """``function`` compiled, and what each graph says of the kernels in it."""
    found: list[list[str]] = []

    def compiler(graph, _inputs):
        texts = []
        for node in graph.graph.nodes:
            if (own := (node.meta.get("custom") or {}).get(CUSTOM_META)) is not None:
                texts.append(own)
                assert "portakernel_test" not in str(node.target) or ", call" in own
        found.append(list(dict.fromkeys(texts)))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    return torch.compile(function, fullgraph=True, backend=backend, **options), found


@pytest.fixture
def in_graphs(ops, monkeypatch):
    """Gives the kernel for rms_norm that reads memory a priority of its own in graphs, by phase."""

    def give(numbers: Mapping[Phase, int], form="call", kernel="raw_kernels.rms_norm"):
        rules = (*(PriorityRule(number, phases=(phase,)) for phase, number in numbers.items()), PriorityRule(1))
        registry = ops.dispatcher.registry
        changed = replace(registry.kernels[kernel], in_graphs=InGraphs(form, Priority(rules)))
        monkeypatch.setattr(registry, "kernels", MappingProxyType({**registry.kernels, kernel: changed}))

    return give


def causes(error: BaseException | None) -> list[BaseException]:
    """The error, and what it came of."""
    return [] if error is None else [error, *causes(error.__cause__ or error.__context__)]


def gradients(function, x, weight):
    x, weight = (t.detach().clone().requires_grad_() for t in (x, weight))
    function(x, weight).square().sum().backward()
    return x.grad, weight.grad


def test_a_formula_goes_first_in_graphs_alone(ops):
    function, found = compiled(ops.rms_norm)
    x, weight = normal(3, 4), normal(4)
    torch.testing.assert_close(function(x, weight), norm(x, weight))
    assert found == [[INLINE]]
    ops.rms_norm(x, weight)
    assert ops.served("rms_norm") == {"raw_kernels.rms_norm": 1}


class Said(CustomGraphPass):
    """What the nodes of Inductor's graphs say of the ops that they are of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        said = ((node.meta.get("custom") or {}).get(CUSTOM_META) for node in graph.nodes)
        self.texts += dict.fromkeys(text for text in said if text is not None)

    def uuid(self) -> None:
        return None  # no graph comes out of a cache


@needs_cxx
def test_what_aot_compile_traces_in_inference_mode_is_chosen_too(ops):
    """Engines compile so; the mode, which torch.compile leaves before it compiles, keeps autograd out (torch 2.13)."""
    if not hasattr(torch._dynamo.config, "enable_aot_compile"):
        pytest.skip("this torch has no aot_compile")
    said = Said()
    with (
        torch._dynamo.config.patch(enable_aot_compile=True),
        torch._inductor.config.patch(post_grad_custom_pre_pass=said),
        torch.inference_mode(),
    ):
        x, weight = normal(3, 4), normal(4)
        unguarded = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}  # as engines have it

        def function(x, weight):
            return ops.rms_norm(x, weight)

        made = torch.compile(function, fullgraph=True, options=unguarded).aot_compile(((x, weight), {}))
        torch.testing.assert_close(made(x, weight), norm(x, weight))
    assert said.texts == [INLINE]
    assert ops.served("rms_norm") == {}


def test_a_formula_is_trained_with_the_ops_own_gradients(ops):
    function, found = compiled(ops.rms_norm)
    x, weight = normal(3, 4), normal(4)
    torch.testing.assert_close(gradients(function, x, weight), gradients(norm, x, weight))
    assert found == [[f"{INLINE}; backward: reference.rms_norm, inline"]] * 2


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({Phase.TRAINING: 200}, f"{CALL}; backward: reference.rms_norm, inline"),
        ({Phase.BACKWARD: 200}, f"{INLINE}; backward: raw_kernels.rms_norm, call"),
    ],
)
def test_forward_and_backward_are_chosen_apart(ops, in_graphs, numbers, named):
    in_graphs(numbers)
    function, found = compiled(ops.rms_norm)
    x, weight = normal(3, 4), normal(4)
    torch.testing.assert_close(gradients(function, x, weight), gradients(norm, x, weight))
    assert found == [[named], [named]]
    counts = [ops.served("rms_norm", phase) for phase in ("training", "backward")]
    called = {"raw_kernels.rms_norm": 1}
    assert counts == ([called, {}] if Phase.TRAINING in numbers else [{}, called])


class LockedPlan:
    """A plan that covers nothing."""

    name, locked = "p.yaml", True

    def places(self):
        return ()


def test_the_backward_of_a_forward_that_a_graph_dissolves_is_no_more_the_plan_s_than_that(ops, in_graphs):
    """Nobody counts such a call, so that no plan is locked for it."""
    in_graphs({Phase.BACKWARD: 200})
    ops.dispatcher.routes.set(LockedPlan(), None)
    function, found = compiled(ops.rms_norm)
    x, weight = normal(3, 4), normal(4)
    torch.testing.assert_close(gradients(function, x, weight), gradients(norm, x, weight))
    assert found[0] == [f"{INLINE}; backward: raw_kernels.rms_norm, call"]
    assert ops.served("rms_norm", "backward") == {"raw_kernels.rms_norm": 1}


def test_a_priority_in_graphs_says_which_kernel_is_called(ops, in_graphs):
    in_graphs({Phase.INFERENCE: 101})
    function, found = compiled(ops.rms_norm)
    function(normal(3, 4), normal(4))
    assert found == [[CALL]]
    request = replace(ops.caller("rms_norm").request(*_kind(), (normal(3, 4), normal(4)), (1e-6, 0.0)), compiled=True)
    decision = ops.dispatcher.decide(request)
    assert (decision.form, decision.why) == ("call", "highest priority 101, before 100 of reference.rms_norm")


def _kind():
    from portakernel.calling.fast.key_layout import PLAIN

    return (PLAIN,)


@pytest.mark.parametrize(
    ("wishes", "named"),
    [
        ({"compiled": "call"}, CALL),
        ({"compiled": "kernel"}, INLINE),  # of three kernels none has that form: the priorities decide
        ({"deny": "reference"}, CALL),
        ({"prefer": "raw_kernels"}, CALL),
        ({"use": "reference"}, "rms_norm: reference.rms_norm, call"),
        ({"use": "reference", "compiled": "inline"}, INLINE),
        ({"reference": "forbid"}, INLINE),
    ],
)
def test_a_policy_says_which_form(ops, wishes, named):
    ops.dispatcher.set_process_layer(make_layer("set_policy", **wishes))
    function, found = compiled(ops.rms_norm)
    x, weight = normal(3, 4), normal(4)
    torch.testing.assert_close(function(x, weight), norm(x, weight))
    assert found == [[named]]


def test_explain_says_why_another_form_does_not_stand_there(ops):
    ops.dispatcher.set_process_layer(make_layer("set_policy", compiled="call"))
    asked = ops.caller("rms_norm")
    decision = asked.explain((normal(3, 4), normal(4)), (1e-6, 0.0), Phase.INFERENCE, compiled=True)
    assert (decision.chosen.name, decision.form) == ("raw_kernels.rms_norm", "call")
    assert {candidate.form for candidate in decision.candidates} == {"call"}
    ops.dispatcher.set_process_layer(make_layer("set_policy", compiled="inline"))
    decision = asked.explain((normal(3, 4), normal(4)), (1e-6, 0.0), Phase.INFERENCE, compiled=True)
    assert (decision.chosen.name, decision.form) == ("reference.rms_norm", "inline")
    (reason,) = decision.candidate("raw_kernels.rms_norm").rejections
    assert reason.text == "set_policy wants the form inline in compiled graphs; reference.rms_norm has it"
    assert "chosen: reference.rms_norm, inline (" in str(decision)


def test_explain_inside_a_block_says_that_graphs_hold_calls(ops):
    with PolicyBlock(lambda: (ops.dispatcher, make_layer("context", use="raw_kernels")), ""):
        asked = ops.caller("rms_norm")
        decision = asked.explain((normal(3, 4), normal(4)), (1e-6, 0.0), Phase.INFERENCE, compiled=True)
    assert (decision.chosen.name, decision.form) == ("raw_kernels.rms_norm", "call")


def test_a_caller_that_names_a_kernel_gets_it(ops):
    function, found = compiled(lambda x, w: ops.rms_norm(x, w, kernel="raw_kernels"))
    function(normal(3, 4), normal(4))
    assert found == [[CALL]]


def test_while_any_thread_is_in_a_block_graphs_hold_calls_which_follow_their_own_threads_blocks(ops):
    function, found = compiled(lambda x: ops.add(x, x))
    x = normal(3, 4)
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with PolicyBlock(lambda: (ops.dispatcher, make_layer("context", use="torch")), ""):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    torch.testing.assert_close(function(x), 2 * x)
    done.set()
    thread.join()
    assert ops.served("add") == {"raw_kernels.add": 1}
    torch.testing.assert_close(function(x), 2 * x)
    assert found == [["add: raw_kernels.add, call"], ["add: reference.add, inline"]]


def test_a_formula_computes_in_its_own_precision_under_autocast(ops):
    function, found = compiled(ops.rms_norm)
    x, weight = normal(3, 4), normal(4)
    with torch.autocast("cpu", torch.bfloat16):
        result = function(x, weight)
    torch.testing.assert_close(result, norm(x, weight))
    assert found == [[INLINE]]


def test_results_are_contiguous_whatever_the_arguments_are(ops):
    function, _ = compiled(ops.rms_norm)
    x, weight = normal(4, 3).t(), normal(4)
    result = function(x, weight)
    assert result.is_contiguous()
    torch.testing.assert_close(result, norm(x, weight))


def test_what_the_op_refuses_is_refused_in_a_graph(ops):
    function, _ = compiled(ops.rms_norm)
    with pytest.raises(Exception, match="int64") as raised:
        function(torch.ones(3, 4, dtype=torch.int64), normal(4))
    assert ArgumentTypeError in map(type, causes(raised.value))


def test_a_kernel_that_cannot_be_traced_is_named_with_the_graphs_node(ops, in_graphs):
    in_graphs({Phase.INFERENCE: 300}, form="inline")
    function, _ = compiled(ops.rms_norm)
    with pytest.raises(
        Exception, match=r"rms_norm: raw_kernels\.rms_norm cannot stand in the graph as inline, at node"
    ) as raised:
        function(normal(3, 4), normal(4))
    assert CompiledGraphError in map(type, causes(raised.value))


@pytest.mark.parametrize("options", [{"dynamic": True}, {}])
def test_twenty_lengths_are_one_graph(ops, options):
    function, found = compiled(ops.rms_norm, **options)
    weight = normal(4)
    for rows in range(2, 22):
        x = normal(rows, 4)
        if not options:
            torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(function(x, weight), norm(x, weight))
    assert found == [[INLINE]]


def test_values_are_looked_at_by_calls_alone(ops, monkeypatch):
    for op in ("add", "rms_norm"):
        monkeypatch.setattr(ops.caller(op), "checks_values", True)
    function, found = compiled(ops.rms_norm)
    function(normal(3, 4), normal(4))
    assert found == [[CALL]]


@pytest.mark.parametrize("entered", ["with", "decorator"])
def test_a_block_inside_a_compiled_function_breaks_the_graph_or_says_where_it_belongs(ops, entered):
    block = PolicyBlock(lambda: (ops.dispatcher, make_layer("context", use="torch")), "")
    decorated = block(lambda x: ops.add(x, x))

    def function(x):
        if entered == "decorator":
            return decorated(x) * 2
        with PolicyBlock(lambda: (ops.dispatcher, make_layer("context", use="torch")), ""):
            return ops.add(x, x) * 2

    x = normal(3, 4)
    torch.testing.assert_close(torch.compile(function, backend="aot_eager")(x), 4 * x)
    assert set(ops.served("add")) == {"torch.add"}
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="put it around the compiled function"):
        torch.compile(function, fullgraph=True, backend="aot_eager")(x)
