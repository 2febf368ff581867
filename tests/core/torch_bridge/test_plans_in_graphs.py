"""Plans over calls of compiled graphs whose forward and backward are one choice: each kernel saves in its own way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import portakernel
from portakernel import ops, runtime
from portakernel.claims.request import Phase
from portakernel.errors import NoKernelError
from portakernel.plan.export import make_plan
from portakernel.plan.plan import Lock, Place
from portakernel.plan.writing import write_plan
from portakernel.tensors.units import units_of_cpu
from portakernel.tuning.choices import Choice
from portakernel.tuning.key import Kind

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),  # torch's own
]
FLASH, MATH, REFERENCE = "torch.attention_flash_cpu", "torch.attention_math", "reference.attention"
UNFUSED, PLAIN = "torch.linear_act_unfused", "reference.linear_act"
Planned = Callable[..., Path]


@pytest.fixture(autouse=True)
def _calls_in_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    portakernel.set_policy(compiled="call")
    yield
    portakernel.set_policy()
    portakernel.load_plan(None)
    torch._dynamo.reset()


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Has the process follow a plan for an op that is trained: this kernel, for these lengths, or rows."""

    def follow(kernel: str, *lengths: tuple[int, int], lock: Lock = "listed", name: str = "p.yaml") -> Path:
        now = runtime.dispatcher()
        op = now.registry.kernels[kernel].op
        names, dim = ("qkv", "S") if op == "attention" else (("x", "weight"), "M")
        place = Place(str(now.registry.device("cpu").target), units_of_cpu())
        dtypes = dict.fromkeys(names, "float32")
        kinds = [Kind(op, str(phase), dtypes) for phase in (Phase.TRAINING, Phase.BACKWARD)]
        choices = [Choice(kernel, kind, {dim: bounds}, "") for kind in kinds for bounds in lengths]
        path = tmp_path / name
        write_plan(make_plan({place: choices}, now.registry, lock=lock), path)
        portakernel.load_plan(path)
        return path

    return follow


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ops.attention(q, k, v) + 1


def tensors(length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(length)
    return [torch.randn(1, rows, 2, 8, dtype=dtype, requires_grad=True) for rows in (length, 6, 6)]


def trained(function: Callable[..., Tensor], length: int, *more: Tensor) -> tuple[list[tuple[str, str]], list[Tensor]]:
    """Which kernels served, each with its phase, and the gradients."""
    given, before = tensors(length), counts()
    gradients = torch.autograd.grad(function(*given, *more).square().sum(), given)
    return sorted((counts() - before).elements()), list(gradients)


def counts() -> Counter[tuple[str, str]]:
    return sum((Counter({(used.phase, used.kernel): used.calls}) for used in portakernel.stats()), Counter())


def compiled(**options: object) -> Callable[..., Tensor]:
    return torch.compile(attention, fullgraph=True, backend="aot_eager", **options)


def both(kernel: str) -> list[tuple[str, str]]:
    return [("backward", kernel), ("training", kernel)]


@pytest.mark.parametrize(("kernel", "served"), [(REFERENCE, both(REFERENCE)), (FLASH, both(FLASH)), (MATH, [])])
def test_a_plan_decides_forward_and_backward_of_trained_attention(planned: Planned, kernel: str, served: list) -> None:
    """What PyTorch records the graph holds as it is: nobody is called."""
    planned(kernel, (1, 64))
    found, gradients = trained(compiled(), 5)
    assert found == served
    decision = portakernel.explain("attention", *tensors(5), phase="training", compiled=True)
    assert (decision.chosen.name, decision.form) == (kernel, "inline" if kernel == MATH else "call")
    assert "p.yaml" in decision.why
    assert any("asked when the graph is traced" in note for note in decision.notes)
    portakernel.load_plan(None)
    torch.testing.assert_close(gradients, trained(attention, 5)[1])


def test_lengths_that_a_trace_leaves_open_are_held_against_the_plan_s_bounds(planned: Planned) -> None:
    planned(REFERENCE, (4, 8), (20, 30))
    function = compiled(dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=False):
        found = [trained(function, length)[0] for length in (5, 7, 12, 25, 40, 6)]
    served = [both(REFERENCE)] * 2 + [both(FLASH)] + [both(REFERENCE)] + [both(FLASH)] + [both(REFERENCE)]
    assert found == served


def test_another_plan_is_another_graph_and_entries_for_other_ops_are_none(planned: Planned) -> None:
    function = compiled()
    assert trained(function, 5)[0] == both(FLASH)
    planned(REFERENCE, (1, 64))
    assert trained(function, 5)[0] == both(REFERENCE)
    token = runtime.dispatcher().trace_token
    planned(REFERENCE, (1, 64), name="of another name.yaml")
    assert runtime.dispatcher().trace_token == token
    portakernel.load_plan(None)
    assert trained(function, 5)[0] == both(FLASH)
    assert runtime.dispatcher().trace_token != token


def test_a_locked_plan_that_does_not_cover_the_call_refuses_forward(planned: Planned) -> None:
    planned(FLASH, (1, 4), lock="everything")
    given = tensors(5)
    text = "p.yaml is locked, and has no entry for such calls; the nearest is p.yaml"
    with pytest.raises(Exception, match=text):  # as Dynamo tells it, where there may be no break
        compiled()(*given)
    for function in (attention, torch.compile(attention, backend="aot_eager")):
        with pytest.raises(NoKernelError, match=text):
            function(*given)
    decision = portakernel.explain("attention", *given, phase="training", compiled=True)
    assert decision.chosen is None
    assert text in str(decision)


def test_policies_go_before_the_plan_and_deny_holds_over_it(planned: Planned) -> None:
    planned(REFERENCE, (1, 64))
    portakernel.set_policy(compiled="call", prefer=FLASH)
    assert trained(compiled(), 5)[0] == both(FLASH)
    portakernel.set_policy(compiled="call", deny=REFERENCE)
    with pytest.raises(Exception, match=r"uses reference\.attention strictly"):
        compiled()(*tensors(5))


def test_of_what_a_graph_dissolves_the_plan_does_not_speak_and_explain_says_so(planned: Planned) -> None:
    planned(REFERENCE, (1, 4), lock="everything")
    portakernel.set_policy(compiled="inline")
    assert trained(compiled(), 5)[0] == []
    for phase in ("training", "backward"):
        decision = portakernel.explain("attention", *tensors(5), phase=phase, compiled=True)
        assert (decision.chosen.name, decision.form) == (FLASH, "inline")
        assert decision.notes == (
            "p.yaml speaks of calls, and not of what a compiled graph dissolves: compiled='call' has it called",
        )


@pytest.mark.parametrize(("kernel", "served"), [(UNFUSED, []), (PLAIN, both(PLAIN))])
def test_what_pytorch_records_is_traced_where_a_plan_names_it(planned: Planned, kernel: str, served: list) -> None:
    """Of other kernels of such an op the plan is asked when the graph runs."""
    planned(kernel, (1, 64))
    function = torch.compile(lambda x, weight: ops.linear_act(x, weight) + 1, fullgraph=True, backend="aot_eager")
    x, weight, before = torch.randn(4, 8, requires_grad=True), torch.randn(3, 8), counts()
    function(x, weight).sum().backward()
    assert sorted((counts() - before).elements()) == served
    decision = portakernel.explain("linear_act", x, weight, phase="training", compiled=True)
    assert decision.chosen.name == kernel


def test_a_block_s_calls_are_decided_when_they_run(planned: Planned) -> None:
    planned(REFERENCE, (1, 64))
    function = compiled()
    with portakernel.policy(deny=MATH):
        assert trained(function, 5)[0] == both(REFERENCE)


def test_sizes_that_only_the_run_can_tell_are_the_plan_s_when_it_runs(planned: Planned) -> None:
    planned(REFERENCE, (1, 3))

    def picked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return ops.attention(q[:, mask.nonzero().squeeze(1)], k, v)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        function = torch.compile(picked, fullgraph=True, backend="aot_eager", dynamic=True)
        mask = torch.tensor([1, 1, 0, 0, 0])
        found, gradients = trained(function, 5, mask)
    assert found == both(REFERENCE)
    torch.testing.assert_close(gradients, trained(picked, 5, mask)[1])
