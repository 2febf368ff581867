"""HIP's machine code for GPUs that are not here, run and compared with torch and Python."""

import pytest

pytest.importorskip("tinygrad")
import torch
from cxx import HAS_CXX
from emulated_hip import compiled_hip, needs_hip

from portakernel.emulation import Kind, emulate

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
pytestmark = [needs_hip, pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")]


def launch(arch, name, grid, block, arguments, **options):
    return emulate(compiled_hip(arch), name, grid, block, arguments, arch, **options)


@pytest.mark.parametrize("arch", ARCHS)
def test_gelu_of_the_device_library_is_within_two_units(arch):
    torch.manual_seed(1)
    x = torch.cat([torch.randn(1000) * 3, torch.tensor([0.0, -0.0, 1e-30, 20.0, -20.0])])
    out = torch.full_like(x, torch.nan)
    ran = launch(arch, "gelu", (5,), (256,), [x, out, len(x)])
    wide = x.double()
    expected = 0.5 * wide * (1 + torch.erf(wide * 0.7071067811865476))
    assert torch.allclose(out.double(), expected, rtol=3e-6, atol=3e-7)
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_lds_goes_through_a_barrier(arch):
    x = torch.randn(512)
    out = torch.zeros(512)
    ran = launch(arch, "reversed", (2,), (256,), [x, out])
    assert torch.equal(out, x.reshape(2, 256).flip(1).reshape(-1))
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_a_missing_barrier_is_a_conflict_of_waves(arch):
    x = torch.randn(256)
    ran = launch(arch, "reversed_without_barrier", (1,), (256,), [x, torch.zeros(256)])
    assert {one.kind for one in ran.findings} == {Kind.CONFLICT, Kind.UNINITIALISED_LDS}
    conflict = next(one for one in ran.findings if one.kind is Kind.CONFLICT)
    assert conflict.instruction.startswith("ds_")
    assert conflict.wave != conflict.other_wave


@pytest.mark.parametrize("arch", ARCHS)
def test_a_load_of_lds_that_nobody_wrote_is_named(arch):
    ran = launch(arch, "unwritten", (1,), (256,), [torch.zeros(256)])
    assert [(one.kind, one.lane + 32 * (2 if arch.startswith("gfx9") else 1) * one.wave) for one in ran.findings] == [
        (Kind.UNINITIALISED_LDS, 100)
    ]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_tree_in_lds_sums_rows(arch):
    torch.manual_seed(2)
    x = torch.randn(3, 1000)
    out = torch.zeros(3)
    ran = launch(arch, "row_sums", (3,), (256,), [x, out, 1000])
    assert torch.allclose(out.double(), x.double().sum(1), rtol=1e-4, atol=1e-4)
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_integers_of_64_bits_multiply_divide_and_shift(arch):
    generator = torch.Generator().manual_seed(3)
    a, b = torch.randint(-(2**63), 2**63 - 1, (2, 300), generator=generator)
    a[:4], b[:4] = torch.tensor([0, -1, 2**63 - 1, -(2**63)]), torch.tensor([1, -1, 3, 7])
    out = torch.zeros_like(a)
    ran = launch(arch, "mix64", (2,), (256,), [a, b, out, 300])

    def expected(x, y):
        u, v, ones = x % 2**64, y % 2**64, 2**64 - 1
        odd = y | 1
        remainder = abs(x) % abs(odd) * (-1 if x < 0 else 1)
        return (x * y ^ u // (v | 1) ^ remainder ^ u << (v & 63) ^ x >> (v & 63)) & ones

    assert [value & 2**64 - 1 for value in out.tolist()] == [
        expected(*pair) for pair in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_float32_division_and_square_root_round_as_ieee_754_does(arch):
    generator = torch.Generator().manual_seed(4)
    bits = torch.randint(-(2**31), 2**31 - 1, (2, 4096), generator=generator).int()
    a, b = bits.view(torch.float32)
    edges = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 1.0, 3.4e38, 1.2e-38])
    a[:81], b[:81] = edges.repeat(9), edges.repeat_interleave(9)
    quotient, root = torch.zeros_like(a), torch.zeros_like(a)
    ran = launch(arch, "divide", (16,), (256,), [a, b, quotient, root, 4096])
    assert torch.equal(
        quotient.nan_to_num(nan=7.0, posinf=8.0, neginf=9.0), (a / b).nan_to_num(nan=7.0, posinf=8.0, neginf=9.0)
    )
    expected = a.double().abs().sqrt().float()  # torch's own of float32 is off by a unit here and there
    assert torch.equal(root.nan_to_num(nan=7.0, posinf=8.0), expected.nan_to_num(nan=7.0, posinf=8.0))
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_float64_divides_and_takes_roots(arch):
    torch.manual_seed(5)
    a, b = torch.randn(2, 500, dtype=torch.float64) * 1e10
    out = torch.zeros_like(a)
    ran = launch(arch, "doubles", (2,), (256,), [a, b, out, 500])
    assert torch.allclose(out, a / b + a.abs().sqrt() * b, rtol=1e-15, atol=0)
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_workgroups_and_work_items_know_where_they_are_in_three_dimensions(arch):
    out = torch.zeros(2 * 3 * 4 * 5 * 3 * 7, dtype=torch.int32)
    ran = launch(arch, "where", (2, 3, 4), (5, 3, 7), [out])
    blocks = torch.arange(24).repeat_interleave(105)
    assert torch.equal(out, (blocks * 1000 + torch.arange(105).repeat(24)).int())
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_an_access_by_a_null_pointer_is_told_as_one(arch):
    (finding,) = launch(arch, "reversed", (1,), (256,), [None, torch.zeros(256)]).findings
    assert str(finding).startswith(
        "an access of 4 bytes by a null pointer, at 0x0 (None and tensors without elements are null pointers): "
    )
    assert str(finding).endswith(", 256 accesses of lanes in all")


@pytest.mark.parametrize("arch", ARCHS)
def test_atomics_of_another_kernel_in_the_file_order_no_workgroups_of_this_one(arch):
    x = torch.arange(5 * 64, dtype=torch.int32)
    ran = launch(arch, "shifted", (4,), (64,), [x, x], threads=1)
    assert {one.kind for one in ran.findings} == {Kind.GROUP_CONFLICT}
    count = torch.zeros(1, dtype=torch.int32)
    assert launch(arch, "counted", (4,), (64,), [count]).clean
    assert count.item() == 256


@pytest.mark.parametrize("arch", ARCHS)
def test_atomics_of_a_called_function_may_order_workgroups(arch):
    x, count = torch.arange(5 * 64, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    assert launch(arch, "shifted_by_number", (4,), (64,), [x, x, count], threads=1).clean
    assert count.item() == 256


@pytest.mark.parametrize("arch", ARCHS)
def test_functions_are_called_and_return(arch):
    out = torch.zeros(64, dtype=torch.int32)
    ran = launch(arch, "called", (1,), (64,), [out])

    def steps(n):
        return 0 if n == 1 else 1 + steps(3 * n + 1 if n % 2 else n // 2)

    assert out.tolist() == [steps(at + 1) + steps(at + 7) for at in range(64)]
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("name", "index"), [("private_array", lambda i: 5 * i), ("indexed_registers", lambda i: i & 7)]
)
def test_arrays_in_private_memory_and_registers_belong_to_their_lane(arch, name, index):
    order = torch.randperm(16, generator=torch.Generator().manual_seed(6)).int()
    out = torch.zeros(128, dtype=torch.int32)
    ran = launch(arch, name, (1,), (128,), [order, out])
    expected = []
    for thread in range(128):
        total = 0
        for i in order.tolist():
            total = total * 3 + index(i) ** 2 + thread
        expected.append((total + 2**31) % 2**32 - 2**31)
    assert out.tolist() == expected
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_float16_is_rounded_after_each_operation_or_fused(arch):
    torch.manual_seed(7)
    x = torch.randn(1000).half()
    out = torch.zeros_like(x)
    ran = launch(arch, "half_norm", (4,), (256,), [x, out, 1000])
    wide = x.double()
    assert torch.allclose(out.double(), wide * wide + 0.5 * wide - 1, rtol=2e-3, atol=2e-3)
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_a_wave_that_waits_for_another_lets_it_run(arch):
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    ran = launch(arch, "handed_over", (1,), (256,), [flag, out])
    assert (flag.item(), out.item(), ran.stopped) == (1, 5, False)
    if arch not in ("gfx90a", "gfx1100"):  # whose atomics within a workgroup look like any load and store
        assert ran.clean, ran.findings
