"""CUTLASS' products: their table, what a call looks like in C, what is built ahead, and one library, compiled here."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import portakernel
from portakernel.authoring.native import Options, Unit, compiler_for
from portakernel.claims.capability import CannotRun, Rejection
from portakernel.claims.request import Request
from portakernel.contracts import contract
from portakernel.references import scale_formats
from portakernel.runtime import dispatcher
from portakernel.words.target import Target
from portakernel_plugins.cutlass import (
    ahead,
    configurations,
    launch,
    libraries,
    linear_act,
    offline,
    scaled_mm,
    scaled_mm_mx,
)
from portakernel_plugins.cutlass.calls import Call
from portakernel_plugins.cutlass.configurations import Configuration, for_arch, table

FOLDER = Path(configurations.__file__).parent / "cuda"
ARCHS = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100")
C_TYPES = {
    "void const*": ctypes.c_void_p,
    "void*": ctypes.c_void_p,
    "int64_t": ctypes.c_int64,
    "int32_t": ctypes.c_int32,
}


def compiles(target: str) -> str:
    """Why a library cannot be compiled here for the target; empty where it can."""
    if importlib.util.find_spec("cutlass_library") is None:
        return "CUTLASS' headers are not installed; pip install --no-deps nvidia-cutlass"
    found = compiler_for(Target.parse(target), Options(compilers=("nvcc",)), "library")
    return found.text if isinstance(found, Rejection) else ""


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_kernel_has_an_entry_for_any_call_on_each_of_its_architectures():
    for kernel, entries in table().items():
        archs = {arch for entry in entries for arch in entry.archs}
        assert archs <= set(ARCHS), kernel
        for arch in archs:
            last = for_arch(kernel, arch)[-1]
            assert (last.max_m, last.max_k) == (None, None), f"{kernel} on {arch}"
            assert [entry.name for entry in for_arch(kernel, arch)[:-1] if entry.serves(1 << 30, 1 << 30)] == []


def test_names_of_entries_are_unique():
    names = [entry.name for entries in table().values() for entry in entries]
    assert sorted(names) == sorted(set(names))


def test_an_entry_defines_each_macro_that_its_source_reads_and_no_other():
    macros = re.compile(r"\b(TILE_[MNK]|WARP_[MN]|CLUSTER_[MN]|STAGES|PINGPONG|STREAM_K|SWAPPED|WGMMA_N)\b")
    for entries in table().values():
        for entry in entries:
            files = (entry.source, "hopper.cuh") if entry.generation == "sm90" else (entry.source,)
            read = {name for file in files for name in macros.findall((FOLDER / file).read_text())}
            assert {name for name, _ in entry.defines} == read, entry.name


def test_headers_that_a_source_includes_are_those_that_are_compiled_with_it():
    for source in {entry.source for entries in table().values() for entry in entries}:
        reached, open_files = set[str](), [source]
        while open_files:
            found = re.findall(r'#include "(\w+\.cuh)"', (FOLDER / open_files.pop()).read_text())
            open_files += set(found) - reached
            reached |= set(found)
        entry = next(entry for entries in table().values() for entry in entries if entry.source == source)
        assert set(libraries.Recipe("any", entry, ()).unit().source.headers) == {f"cuda/{name}" for name in reached}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schedule": "pingpon"}, "unknown schedule 'pingpon'; did you mean 'pingpong'?"),
        ({"raster": "along_k"}, "unknown raster 'along_k'; did you mean 'along_n' or 'along_m'?"),
        ({"schedule": "pingpong", "stream_k": True}, "stream_k needs schedule: cooperative"),
        ({"tile": (64, 128, 64)}, "a cooperative tile has 128 rows or a multiple, not 64"),
        ({"wgmma_n": 96}, "wgmma_n divides the tile's 128 columns and is a multiple of 8, not 96"),
    ],
)
def test_values_that_do_not_go_together_are_refused(changed, said):
    given = {"name": "x", "archs": ("sm_90",), "source": "linear_act_sm90.cu", "tile": (128, 128, 64)} | changed
    with pytest.raises(ValueError, match=re.escape(f"configurations.yaml: x: {said}")):
        Configuration(**given)


# --- calls in C ------------------------------------------------------------------------------------------------------


def test_a_call_in_python_is_the_structure_in_c():
    text = (FOLDER / "call.cuh").read_text()
    body = re.search(r"struct Call \{(.*?)\n\};", text, re.DOTALL).group(1)
    fields = re.findall(r"^\s*(void const\*|void\*|int64_t|int32_t) (\w+);", body, re.MULTILINE)
    assert [(name, C_TYPES[kind]) for kind, name in fields] == list(Call._fields_)


def test_activations_have_the_numbers_that_the_kernels_read():
    text = (FOLDER / "activation.cuh").read_text()
    listed = re.search(r"enum class Activation : int32_t \{ (.*?) \}", text).group(1)
    names = [re.sub(r"(?<!^)([A-Z])", r"_\1", name.removeprefix("k")).lower() for name in listed.split(", ")]
    choices = contract("linear_act").parameter("activation").choices
    assert (
        {name: place for place, name in enumerate(names)}
        == linear_act._ACTIVATIONS
        == {name: linear_act._ACTIVATIONS[name] for name in choices}
    )


def test_rows_that_16_byte_loads_can_read_are_taken_as_they_are():
    x = torch.zeros(6, 32, dtype=torch.bfloat16)
    for matrix, stride in ((x, 32), (x[:, :16], 32), (x[::2], 64), (x[:1], 32), (x[:0], 32), (x[0], 32)):
        taken, found = launch.rows(matrix, matrix.shape[-1])
        assert (taken.data_ptr(), found) == (matrix.data_ptr(), stride)
    parts = x.view(2, 3, 32)[..., :8]
    taken, stride = launch.rows(parts, 8)
    assert (taken.data_ptr(), tuple(taken.shape), stride) == (x.data_ptr(), (6, 8), 32)


@pytest.mark.parametrize("name", ["shifted", "narrow steps", "transposed", "stepped", "expanded", "two strides"])
def test_other_rows_are_copied(name):
    x = torch.arange(6 * 36.0).to(torch.bfloat16).view(6, 36)
    matrix = {
        "shifted": x[:, 1:17],
        "narrow steps": x[:, :16],
        "transposed": x[:, :8].t(),
        "stepped": x[:, ::2],
        "expanded": x[:1, :16].expand(6, 16),
        "two strides": x.view(2, 3, 36)[:, :2, :16],
    }[name]
    copied, stride = launch.rows(matrix, matrix.shape[-1])
    assert copied.is_contiguous()
    assert stride == matrix.shape[-1]
    torch.testing.assert_close(copied.view(matrix.shape), matrix, rtol=0, atol=0)


def test_one_row_has_a_stride_that_is_valid_whatever_it_was():
    row = torch.zeros(64, dtype=torch.bfloat16).as_strided((1, 32), (7, 2))
    assert launch.rows(torch.zeros(1, 32).as_strided((1, 32), (7, 1)), 32)[1] == 32
    assert launch.rows(row, 32)[1] == 32


class Recorded:
    """Stands for a product: keeps what it was called with."""

    def __init__(self) -> None:
        self.calls = list[tuple[Call, torch.Tensor, libraries.Macros]]()

    def __call__(self, call, y, macros):
        self.calls.append((call, y, macros))


def test_a_linear_layer_passes_its_sizes_strides_and_addresses(monkeypatch):
    product = Recorded()
    monkeypatch.setattr(linear_act, "_HOPPER", product)
    x, weight = torch.zeros(2, 3, 32, dtype=torch.bfloat16)[..., :16], torch.zeros(24, 16, dtype=torch.bfloat16)
    bias = torch.zeros(24, dtype=torch.bfloat16)
    y = linear_act.linear_act(x, weight, bias, activation="gelu")
    ((call, written, macros),) = product.calls
    assert written is y
    assert (y.shape, y.dtype, macros) == ((2, 3, 24), torch.bfloat16, (("ELEMENT", "cutlass::bfloat16_t"),))
    assert (call.m, call.n, call.k, call.activation) == (6, 24, 16, 2)
    assert (call.stride_a, call.stride_b, call.stride_y) == (32, 16, 24)
    assert (call.a, call.b, call.bias, call.y) == tuple(t.data_ptr() for t in (x, weight, bias, y))


def test_a_linear_layer_without_rows_or_bias(monkeypatch):
    product = Recorded()
    monkeypatch.setattr(linear_act, "_AMPERE", product)
    weight = torch.zeros(24, 16, dtype=torch.float16)
    y = linear_act.linear_act_ampere(weight.new_zeros(0, 16), weight, activation="none")
    assert (y.shape, product.calls) == ((0, 24), [])
    linear_act.linear_act_ampere(weight.new_zeros(16), weight, activation="none")
    ((call, _, _),) = product.calls
    assert (call.m, call.bias) == (1, None)


def test_out_is_written_directly_where_it_can_be(monkeypatch):
    product = Recorded()
    monkeypatch.setattr(linear_act, "_HOPPER", product)
    x, weight = torch.zeros(4, 16, dtype=torch.float16), torch.zeros(24, 16, dtype=torch.float16)
    for out, direct in ((x.new_zeros(4, 24), True), (x.new_zeros(4, 48)[:, ::2], False)):
        assert linear_act.linear_act(x, weight, activation="relu", out=out) is out
        assert (product.calls[-1][1] is out) == direct


@pytest.mark.parametrize(("formats", "bits"), [(("row", "row"), 3), (("row", "tensor"), 1), (("tensor", "tensor"), 0)])
def test_a_quantised_product_says_which_scales_there_is_one_of(monkeypatch, formats, bits):
    product = Recorded()
    monkeypatch.setattr(scaled_mm, "_SCALED", product)
    scale_a, scale_b = quantised(monkeypatch, formats, fast=False)
    ((call, y, macros),) = product.calls
    assert (call.m, call.n, call.k, call.rows_of_scales) == (8, 24, 32, bits)
    assert (call.scale_a, call.scale_b) == (scale_a.data_ptr(), scale_b.data_ptr())
    assert (y.dtype, macros) == (torch.float16, (("OUTPUT", "cutlass::half_t"), ("FAST_SUMS", 0)))


def test_fast_sums_are_other_libraries(monkeypatch):
    product = Recorded()
    monkeypatch.setattr(scaled_mm, "_SCALED_FAST", product)
    quantised(monkeypatch, ("row", "row"), fast=True)
    ((_, _, macros),) = product.calls
    assert macros == (("OUTPUT", "cutlass::half_t"), ("FAST_SUMS", 1))


def quantised(monkeypatch, formats, *, fast):
    """The scales of a product of (8, 32) and (24, 32)."""
    a, b = (torch.zeros(rows, 32).to(torch.float8_e4m3fn) for rows in (8, 24))
    shapes = [(rows, 1) if layout == "row" else () for rows, layout in zip((8, 24), formats, strict=True)]
    scale_a, scale_b = map(torch.ones, shapes)
    values = {"format_a": formats[0], "format_b": formats[1], "out_dtype": "float16", "use_fast_accum": fast}
    scaled_mm.scaled_mm(a, b, scale_a, scale_b, global_scale_a=None, global_scale_b=None, **values)
    return scale_a, scale_b


def test_scales_of_blocks_are_brought_into_columns_unless_they_lie_so(monkeypatch):
    product = Recorded()
    monkeypatch.setattr(scaled_mm, "_BLOCKS", product)
    a, b = (torch.zeros(rows, 256).to(torch.float8_e4m3fn) for rows in (8, 128))
    in_rows, in_columns = torch.rand(8, 2), torch.rand(2, 8).t()
    values = {"format_a": "block_1x128", "format_b": "block_128x128", "out_dtype": "bfloat16", "use_fast_accum": False}
    seen = []
    for scale_a in (in_rows, in_columns):
        scaled_mm.scaled_mm_blocks(a, b, scale_a, torch.ones(1, 2), global_scale_a=None, global_scale_b=None, **values)
        seen.append(product.calls[-1][0].scale_a)
    assert seen[0] != in_rows.data_ptr()
    assert seen[1] == in_columns.data_ptr()


def test_a_product_of_float4_counts_elements_and_takes_scales_in_tiles(monkeypatch):
    product = Recorded()
    monkeypatch.setattr(scaled_mm_mx, "_PRODUCTS", {"nvfp4": product})
    a, b = (torch.zeros(rows, 32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2) for rows in (8, 24))
    tiles = torch.zeros(128, 4).to(torch.float8_e4m3fn)
    factors = torch.tensor(3.0), torch.tensor(5.0)
    values = {"format_a": "nvfp4", "format_b": "nvfp4", "out_dtype": "bfloat16", "use_fast_accum": False}
    y = scaled_mm_mx.scaled_mm_mx(
        a, b, tiles, tiles, global_scale_a=factors[0], global_scale_b=None, swizzle="32_4_4", **values
    )
    ((call, written, macros),) = product.calls
    assert written is y
    assert (call.m, call.n, call.k, call.stride_a, call.stride_b) == (8, 24, 64, 64, 64)
    assert (call.scale_a, call.factor) == (tiles.data_ptr(), factors[0].data_ptr())
    assert macros == (("OPERAND", "cutlass::nv_float4_t<cutlass::float_e2m1_t>"), ("OUTPUT", "cutlass::bfloat16_t"))
    assert scaled_mm_mx._product(*factors) == 15.0


@pytest.mark.parametrize("shape", [(1, 1), (129, 5), (256, 8)])
def test_scales_in_tiles_are_those_of_the_contract(shape):
    scale = torch.rand(shape).to(torch.float8_e4m3fn)
    wanted = scale_formats.swizzled(scale)
    assert torch.equal(scaled_mm_mx.in_tiles(scale), wanted.view(torch.uint8))


# --- built ahead -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "target", "kernel"),
    [
        ("linear_act", "nvidia:sm_90", "linear_act"),
        ("linear_act", "nvidia:sm_86", "linear_act_ampere"),
        ("scaled_mm", "nvidia:sm_90", "scaled_mm"),
    ],
)
def test_explain_names_the_command_that_builds_a_kernel(op, target, kernel):
    candidate = portakernel.explain(op, target=target).candidate(f"cutlass.{kernel}")
    said = [*candidate.assumed, *(rejection.text for rejection in candidate.rejections)]
    assert any(f"portakernel build cutlass --target {target}" in text for text in said), said


def test_what_is_not_built_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(ahead, "is_built", lambda recipe, target: recipe.configuration.name != "fp8")
    target = Target.parse("nvidia:sm_90")
    asked = Request("scaled_mm", target, {"out_dtype": "bfloat16"}, values={"use_fast_accum": False})
    rejection = ahead.built_scaled_mm(asked)
    assert rejection.code == "needs_build"
    assert rejection.text == (
        "fp8 (bfloat16) is not built for nvidia:sm_90; `portakernel build cutlass --target nvidia:sm_90` or"
        ' portakernel.warmup("scaled_mm", a, b, scale_a, scale_b) builds it'
    )
    assert ahead.built_scaled_mm(replace(asked, values={"use_fast_accum": True})) is None
    monkeypatch.setattr(ahead, "is_built", lambda recipe, target: recipe.macros == libraries.element_macros("float16"))
    assert ahead.built_linear_act(Request("linear_act", target, {"x": "float16"})) is None
    assert ahead.built_linear_act(Request("linear_act", target)) is None  # one of the dtypes that are left open
    missing = ahead.built_linear_act(Request("linear_act", target, {"x": "bfloat16"}))
    assert missing.text.startswith(
        "sm90_sixteen_rows (bfloat16), sm90_few_rows (bfloat16), sm90_short_sums (bfloat16), sm90 (bfloat16) are not"
    )


def test_a_build_makes_what_is_lacking_for_the_dtypes_of_the_call(monkeypatch):
    made = []
    monkeypatch.setattr(ahead, "is_built", lambda recipe, target: recipe.configuration.name == "sm90")
    monkeypatch.setattr(Unit, "build", lambda unit, target: made.append((unit.options.__self__, target)))
    target = Target.parse("nvidia:sm_90")
    ahead.build_linear_act(Request("linear_act", target, {"x": "float16"}), (), ())
    names = {str(recipe) for recipe, _ in made}
    assert names == {f"sm90_{sizes} (float16)" for sizes in ("sixteen_rows", "few_rows", "short_sums")}


def test_the_units_of_a_target_are_the_tables_entries_in_each_dtype():
    of_hopper = ahead.units(Target.parse("nvidia:sm_90"))
    # linear_act four sizes, scaled_mm two with and three without fast sums, blocks: each in two dtypes
    assert len(of_hopper) == len(set(of_hopper)) == 2 * (4 + 3 + 2 + 1)
    assert len(ahead.units(Target.parse("nvidia:sm_80"))) == 2 * 2
    assert len(ahead.units(Target.parse("nvidia:sm_100"))) == 2 * 2  # mxfp8 and nvfp4
    assert ahead.units(Target.parse("nvidia:sm_120")) == ahead.units(Target.parse("amd:gfx942")) == []


def test_meta_tensors_outside_of_a_compilation_are_refused():
    x = torch.empty(64, 64, dtype=torch.bfloat16, device="meta")
    with pytest.raises(portakernel.errors.ArgumentValueError, match="were given meta tensors, which have no memory"):
        linear_act.linear_act(x, x, activation="relu")


def test_a_target_that_the_table_does_not_list_is_refused():
    x = torch.empty(64, 64, dtype=torch.bfloat16, device="meta")
    with offline.compiling(Target.parse("nvidia:sm_100")), pytest.raises(CannotRun) as declared:
        linear_act.linear_act(x, x, activation="relu")
    assert declared.value.rejection.code == "arch"


@pytest.mark.skipif(bool(compiles("nvidia:sm_80")), reason=f"lacks a compiler: {compiles('nvidia:sm_80')}")
def test_a_library_for_ampere_compiles_and_answers_here():
    target = Target.parse("nvidia:sm_80")
    recipe = libraries.recipes("linear_act_ampere", "sm_80", libraries.element_macros("bfloat16"))[0]
    x = torch.empty(16, 64, dtype=torch.bfloat16, device="meta")
    with offline.compiling(target) as found:
        linear_act.linear_act_ampere(x, x, activation="gelu")
    assert [compiled.function for compiled in found] == [str(recipe)] == ["sm80_few_rows (bfloat16)"]
    assert re.search(dispatcher().registry.kernels["cutlass.linear_act_ampere"].evidence["nvidia"], found[0].assembly)
    assert found[0].spilled_bytes == 0

    assert libraries.is_built(recipe, target)
    library = libraries.load(recipe, target)
    good = Call(m=16, n=24, k=64, stride_a=64, stride_b=64, stride_y=24)
    assert library.portakernel_workspace_bytes(good) == 0
    assert library.portakernel_status_text(-1) == b"Error Misaligned Operand"
    # rows of 13 elements: CUTLASS says that it cannot, before it would need a device
    bad = Call(m=16, n=24, k=13, stride_a=13, stride_b=13, stride_y=24)
    declared = launch.failure(library, library.portakernel_launch(bad, None, None), bad)
    assert isinstance(declared, CannotRun)
    assert declared.rejection.code == "alignment"
    assert declared.rejection.text == "CUTLASS cannot serve M=16, N=24, K=13: Error Misaligned Operand"
