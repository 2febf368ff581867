"""References compiled by Inductor: only in a warmup, for what was asked, and never on a call."""

from __future__ import annotations

import uuid

import pytest
import torch
from cxx import needs_cxx

import portakernel
from portakernel.contracts import contract
from portakernel.errors import NoKernelError
from portakernel_plugins.inductor.builds import Op
from portakernel_plugins.inductor.formula import Formula, flattened, unflattened

pytestmark = [
    needs_cxx,
    # importing Inductor, torch 2.13
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]
COMPILER = "portakernel_plugins.inductor.graph.compile_graph"
KERNEL = "inductor.silu_and_mul"


@pytest.fixture
def width() -> int:
    """A size that no other test of this process was built for."""
    return 16 + uuid.uuid4().int % 4000


@pytest.fixture
def built(testrun_uid) -> int:
    """A size that silu_and_mul is built for; the first test of the run that asks has it compiled."""
    width = 5000 + int(testrun_uid, 16) % 4000
    assert portakernel.warmup("silu_and_mul", torch.zeros(3, 2 * width)).built == (KERNEL,)
    return width


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch):
    def refuse():
        def compile_graph(*arguments, **keywords):
            raise AssertionError("compiled on a call")

        monkeypatch.setattr(COMPILER, compile_graph)

    return refuse


def explained(x: torch.Tensor, **asked: str):
    return portakernel.explain("silu_and_mul", x, **asked).candidate(KERNEL)


def reference(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.nn.functional.silu(a) * b


def test_until_it_is_built_the_reason_is_the_command(width):
    (rejection,) = explained(torch.zeros(2, 2 * width)).rejections
    words = f"dtype='float32', shape={{'x': (2, {2 * width})}}, device='cpu'"
    assert (rejection.code, rejection.text) == (
        "needs_build",
        f'is not built for these sizes, dtypes and values; portakernel.warmup("silu_and_mul", {words}) builds it',
    )
    with pytest.raises(NoKernelError, match="needs_build"):
        portakernel.ops.silu_and_mul(torch.zeros(2, 2 * width), kernel="inductor")


def test_what_was_built_serves_any_leading_dimensions_without_compiling(built, no_compiler):
    no_compiler()
    for leading in ((1,), (3,), (64,), (2, 5), ()):
        x = torch.randn(*leading, 2 * built)
        assert portakernel.explain("silu_and_mul", x).chosen.name == KERNEL
        torch.testing.assert_close(portakernel.ops.silu_and_mul(x), reference(x))
        out = torch.empty(*leading, built)
        assert portakernel.ops.silu_and_mul(x, out=out) is out
        torch.testing.assert_close(out, reference(x))


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")  # no rows are left to torch's chain
def test_other_sizes_dtypes_phases_and_layouts_are_refused(built):
    like = torch.zeros(3, 2 * built)
    others = {
        "size": torch.zeros(3, 2 * built + 2),
        "dtype": like.half(),
        "rows": torch.zeros(0, 2 * built),
        "layout": torch.zeros(2 * built, 3).T,
    }
    codes = {name: {str(r.code) for r in explained(x).rejections} for name, x in others.items()}
    assert codes == {
        "size": {"needs_build"},
        "dtype": {"needs_build"},
        "rows": {"limit"},
        "layout": {"layout"},
    }
    assert "needs_build" in {r.code for r in explained(like, phase="backward").rejections}
    assert portakernel.ops.silu_and_mul(others["rows"]).shape == (0, built)


def test_a_request_never_compiles_even_where_nothing_was_built(width, no_compiler):
    no_compiler()
    x = torch.randn(2, 2 * width)
    torch.testing.assert_close(portakernel.ops.silu_and_mul(x), reference(x))


def test_building_again_compiles_nothing(built, no_compiler):
    no_compiler()
    assert portakernel.warmup("silu_and_mul", torch.zeros(3, 2 * built)).built == (KERNEL,)


def test_training_goes_through_what_was_built(width, no_compiler):
    x = torch.randn(3, 2 * width, requires_grad=True)
    portakernel.warmup("silu_and_mul", x)
    no_compiler()
    with portakernel.use("inductor"):
        portakernel.ops.silu_and_mul(x).square().sum().backward()
    found, x.grad = x.grad, None
    reference(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad)
    assert portakernel.explain("silu_and_mul", x).chosen.name == KERNEL


def test_saved_tensors_are_the_contracts(width):
    x, weight = torch.randn(3, width), torch.randn(width)
    x.requires_grad_()
    portakernel.warmup("rms_norm", x, weight, kernel="inductor")
    with portakernel.use("inductor"):
        portakernel.ops.rms_norm(x, weight).sum().backward()
    found, x.grad = x.grad, None
    torch.nn.functional.rms_norm(x, (width,), weight, 1e-6).sum().backward()
    torch.testing.assert_close(found, x.grad)


def test_a_policy_denies_and_names_it(built):
    x = torch.randn(3, 2 * built)
    with portakernel.policy(deny="inductor"):
        assert portakernel.explain("silu_and_mul", x).chosen.name != KERNEL
        assert portakernel.warmup("silu_and_mul", torch.zeros(1, 2)).built == ()


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")  # torch's chain serves then
def test_what_cannot_be_compiled_says_so_from_then_on(width, monkeypatch):
    def compile_graph(*arguments, **keywords):
        from portakernel_plugins.inductor.graph import CannotCompile

        raise CannotCompile("no such instruction")

    monkeypatch.setattr(COMPILER, compile_graph)
    x = torch.zeros(3, 2 * width)
    assert portakernel.warmup("silu_and_mul", x).built == ()
    (rejection,) = explained(x).rejections
    assert (rejection.code, rejection.text) == (
        "cannot_run",
        "Inductor cannot compile the reference: no such instruction",
    )
    with pytest.raises(NoKernelError, match="no such instruction"):
        portakernel.warmup("silu_and_mul", x, kernel="inductor")


def test_a_formula_that_unrolls_is_traced_no_further_than_what_would_be_compiled():
    from portakernel_plugins.inductor.graph import MAX_OPERATIONS, CannotCompile, compile_graph

    computed = 0

    def formula(x):
        nonlocal computed
        for _ in range(10 * MAX_OPERATIONS):
            computed, x = computed + 1, x + 1
        return (x,)

    with pytest.raises(CannotCompile, match=f"more than {MAX_OPERATIONS} operations at these sizes"):
        compile_graph(formula, (), lambda _: [((4,), torch.float32)], torch.device("cpu"))
    assert computed == MAX_OPERATIONS


def test_rows_that_have_a_meaning_by_their_place_keep_their_last_dimension_apart():
    described = contract("rotary_embedding")
    formula = Formula.of(described, "forward", described.values())
    q, table, positions = torch.zeros(2, 3, 4, 8), torch.zeros(9, 4), torch.zeros(2, 3, dtype=torch.int64)
    assert formula.free((q, q, table, table, None), (2, 3)) == (2, 3)
    assert formula.free((q, q, table, table, positions), (2, 3)) == (6,)


def test_features_that_come_by_name_have_their_places_among_the_tensors(monkeypatch):
    ran = []
    monkeypatch.setattr(Op, "_run", lambda self, part, tensors, values: ran.append(tensors) or (tensors[0],))
    x, weight, scales, zeros, bias = (torch.zeros(1) for _ in range(5))
    Op("int4_mm").forward(x, weight, scales, zeros=zeros, bias=bias, layout="packed_mma")
    assert [id(tensor) for tensor in ran[0]] == [id(tensor) for tensor in (x, weight, scales, zeros, None, bias)]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_results_have_their_leading_dimensions_again_though_there_be_none(shape):
    x = torch.randn(shape)
    flat = flattened(x, ("*M",), (x.numel(),))
    assert flat.shape == (x.numel(),)
    assert torch.equal(unflattened(flat, ("*M",), shape, (x.numel(),)), x)
