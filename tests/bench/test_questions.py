"""Which requests are measured: every op has sizes, and each makes a request in each dtype."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from portakernel.calling.arguments import Arguments
from portakernel.contract import Cost, GridRow
from portakernel.contracts import contract, own_contracts
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.warming.outcome import Call
from portakernel.words.target import Device, Target
from portakernel_kit.bench.operands import draw
from portakernel_kit.bench.question import launch_row, questions, rows_of, too_large
from portakernel_kit.bench.traffic import backward_cost, forward_cost, is_compute_bound
from portakernel_kit.cli.bench.requests import questions_of

HERE = Target("cpu", "x86_64")


def test_every_op_has_sizes() -> None:
    assert all(contract(op).grid is not None for op in own_contracts())


@pytest.mark.parametrize("op", own_contracts())
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_row_makes_a_request_that_costs_something(op: str, dtype: str) -> None:
    found = contract(op).grid
    assert found is not None
    asked = questions(op, (*found.rows, found.launch), [dtype], HERE)
    assert len({question.row.name for question in asked}) == len(found.rows) + 1
    assert all(question.cost.bytes > 0 and question.cost.flops > 0 for question in asked)
    floats = {"float32", "float16", "bfloat16"}
    # else it is of indices, or of elements that are quantised
    assert all(dtype in q.dtypes.values() or next(iter(q.dtypes.values())) not in floats for q in asked)


def test_a_row_has_dtypes_of_its_own_unless_others_are_named() -> None:
    row = GridRow("narrow", {"q": (2, 4, 64), "key_cache": (3, 16, 2, 64)}, dtypes={"key_cache": "float8_e4m3fn"})
    row = replace(row, shapes={**row.shapes, "value_cache": (3, 16, 2, 64), "block_table": (2, 1)})
    asked = questions("paged_attention", [row], ["float16", {"q": "bfloat16", "key_cache": "bfloat16"}], HERE)
    found = [tuple(question.dtypes[name] for name in ("q", "key_cache", "value_cache")) for question in asked]
    assert found == [("float16", "float8_e4m3fn", "float8_e4m3fn"), ("bfloat16",) * 3]


def test_the_table_of_one_h200_gives_the_bytes_that_its_rates_are_of() -> None:
    row = next(row for row in rows_of("silu_and_mul", core_only=True) if row.name == "8192×14336")
    (question,) = questions("silu_and_mul", [row], ["bfloat16"], HERE)
    # 166.6 µs at 4.23 TB/s, 2026-11-20
    assert question.cost.bytes / 166.6e-6 == pytest.approx(4.23e12, rel=0.01)
    wide, narrow = 8192 * 28672 * 2, 8192 * 14336 * 2
    backward = backward_cost(contract("silu_and_mul"), question.cost, {"grad_y": narrow, "x": wide}, [wide])
    # 277 µs at 4.24 TB/s
    assert backward.bytes / 277e-6 == pytest.approx(4.24e12, rel=0.01)


def test_attention_computes_two_and_a_half_times_as_much_backward() -> None:
    row = next(row for row in rows_of("attention", core_only=True) if row.name.startswith("B1 S16384"))
    (question,) = questions("attention", [row], ["bfloat16"], HERE)
    assert is_compute_bound(question.cost)
    backward = backward_cost(contract("attention"), question.cost, {}, [])
    # 9.28 ms at 592 TFLOP/s
    assert backward.flops / 9.28e-3 == pytest.approx(592e12, rel=0.01)


def test_norms_are_bound_by_memory_and_large_products_by_arithmetic() -> None:
    bound = {
        row.name: is_compute_bound(questions(op, [row], ["bfloat16"], HERE)[0].cost)
        for op in ("rms_norm", "linear_act")
        for row in rows_of(op, core_only=True)
    }
    assert bound["16384×8192"] is False
    assert bound["8192×14336×4096 gelu"] is True
    assert bound["64×14336×4096 gelu"] is False


def test_dtypes_by_argument_and_in_parameters() -> None:
    (question,) = questions("rms_norm", [launch_row("rms_norm")], [{"x": "float16", "weight": "float32"}], HERE)
    assert question.dtypes == {"x": "float16", "weight": "float32"}
    (question,) = questions("scaled_mm", [launch_row("scaled_mm")], ["float16"], HERE)
    assert question.dtypes["out_dtype"] == "float16"
    assert question.dtypes["a"] == "float8_e4m3fn"


def test_a_dtype_or_an_argument_that_the_op_does_not_have_is_refused() -> None:
    row = launch_row("rms_norm")
    with pytest.raises(ArgumentTypeError, match=r"^rms_norm: nothing of it can be int64; known: bfloat16, float16, fl"):
        questions("rms_norm", [row], ["int64"], HERE)
    with pytest.raises(UnknownNameError, match=r"^rms_norm: unknown tensor argument 'y'; known: weight, x$"):
        questions("rms_norm", [row], [{"y": "float32"}], HERE)
    with pytest.raises(ArgumentValueError, match="rms_norm: weight has shape"):
        questions("rms_norm", [GridRow("", {"x": (4, 8), "weight": (9,)})], ["float32"], HERE)


def test_the_dtype_of_what_is_quantised_to_is_not_taken_for_that_of_all_arguments() -> None:
    row = launch_row("quantize_fp8")
    with pytest.raises(ArgumentTypeError) as caught:
        questions("quantize_fp8", [row], ["float8_e5m2"], HERE)
    assert str(caught.value) == (
        "quantize_fp8: x cannot be float8_e5m2; x can be float32, float16 or bfloat16."
        " dtype can: by name, as in {'dtype': 'float8_e5m2'}"
    )
    (question,) = questions("quantize_fp8", [row], [{"x": "bfloat16", "dtype": "float8_e5m2"}], HERE)
    assert question.dtypes == {"x": "bfloat16", "dtype": "float8_e5m2"}


def test_sizes_for_accelerators_are_left_out_on_a_cpu_and_those_that_do_not_fit_anywhere() -> None:
    large = Cost(bytes=1 << 30, flops=1 << 30)
    assert too_large(large, on_cpu=True, free_bytes=None) == (
        "moves 1074 MB and computes 1.07 GFLOP, which is a size for accelerators; --shape measures what it names"
    )
    assert too_large(large, on_cpu=False, free_bytes=None) == ""
    assert too_large(large, on_cpu=False, free_bytes=1 << 31) == "needs about 6.4 GB of device memory; 2.1 are free"


def test_forward_costs_are_the_contracts() -> None:
    (question,) = questions("rms_norm", [GridRow("", {"x": (3, 8)})], ["float32"], HERE)
    assert forward_cost(contract("rms_norm"), question.request) == Cost(bytes=2 * 24 * 4 + 8 * 4, flops=96)


def test_lengths_that_a_row_gives_are_the_ones_that_are_measured() -> None:
    row = next(row for row in rows_of("attention_varlen", core_only=False) if row.given)
    shapes = {"q": (30, 2, 16), "k": (30, 2, 16), "v": (30, 2, 16), "cu_seqlens_q": (4,), "cu_seqlens_k": (4,)}
    ends = {"cu_seqlens_q": (0, 1, 1, 30), "cu_seqlens_k": (0, 20, 21, 30)}
    (question,) = questions("attention_varlen", [replace(row, shapes=shapes, given=ends)], ["float16"], HERE)
    drawn = draw(question, Arguments(contract("attention_varlen"), Dispatcher().registry), torch.device("cpu"), seed=1)
    assert drawn.lengths() == ends


def test_a_call_of_a_file_has_operands_that_lie_as_it_says() -> None:
    plain = Call("softmax", "float32", {"x": (4, 8)})
    apart = replace(plain, layout={"x.contiguous": False}, strides={"x": (32, 1)})
    device = Device(HERE, "cpu", "cpu")
    found = questions_of([plain, apart, plain], device)
    assert [question.row.name for question in found] == ["x 4×8", "x 4×8, x strides 32×1"]
    made = [draw(q, Arguments(contract("softmax"), Dispatcher().registry), torch.device("cpu"), 0) for q in found]
    assert [operands.tensors[0].stride() for operands in made] == [(8, 1), (32, 1)]  # type: ignore[union-attr]
    assert torch.equal(*(operands.tensors[0] for operands in made))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("int4_mm", {f"{M}×4096×14336 packed_mma 128" for M in (1, 16, 256, 4096)}),
        ("linear_act", {f"{M}×4096×14336 none" for M in (1, 16, 256, 4096)}),  # the products beside those
        ("grouped_mm", {"16384 rows E8 14336×4096", "16384 rows E128 1536×2048", "16384 rows E8 7168×4096 block"}),
        ("moe_mlp", {f"{tokens} tokens E128 k8 2048×768" for tokens in (8, 4096)}),
        ("moe_route", {f"{tokens} tokens E256 k8" for tokens in (64, 4096)}),
        ("moe_sort", {f"{tokens} tokens E256 k8" for tokens in (64, 4096)}),
        ("scaled_mm", {"8192×8192×8192 row", "8192×8192×8192 row fast"}),
    ],
)
def test_products_of_experts_and_4_bit_weights_are_measured_on_sizes_that_libraries_are_compared_on(op, names):
    assert names <= {row.name for row in rows_of(op, core_only=False)}
