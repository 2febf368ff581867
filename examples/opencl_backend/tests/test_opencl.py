"""The example as its users meet it: through portakernel, on whatever OpenCL device is here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import opencl_backend.add as implementation
import opencl_backend.launch
import pytest
import torch
from opencl_backend.launch import Arguments, Program
from torch import Tensor

import portakernel
from portakernel.authoring import Device, NoKernelError

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
OPS = ("add", "rms_norm", "add_rms_norm", "silu_and_mul", "rotary_embedding", "softmax", "log_softmax", "quantize_fp8")
_BITS = {4: torch.int32, 2: torch.int16}


def add(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    return portakernel.ops.add(x, y, out=out, kernel="opencl.add")


def assert_same_bits(found: Tensor, wanted: Tensor) -> None:
    """NaN where NaN is wanted, whichever; elsewhere the same bits, signs of zeros included."""
    bits = _BITS[wanted.element_size()]
    assert found.dtype is wanted.dtype
    assert torch.equal(found.isnan(), wanted.isnan())
    numbers = ~wanted.isnan()
    assert torch.equal(found[numbers].view(bits), wanted[numbers].view(bits))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The addresses that launches are given, from now on."""
    add(torch.ones(1), torch.ones(1))  # the readiness probe launches too, before the first call
    addresses: list[int] = []
    launch = implementation.launch

    def recording(program: Program, kernel: str, rows: int, arguments: Arguments, **how: int) -> None:
        addresses.extend(array.ctypes.data for array in (*arguments.given, *arguments.written))
        launch(program, kernel, rows, arguments, **how)

    monkeypatch.setattr(implementation, "launch", recording)
    return addresses


def run_python(code: str, *options: str, **environment: str) -> str:
    command = [sys.executable, *options, "-c", code]
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


# --- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (255,), (256,), (257,), (1023,), (4, 1024), (3, 5, 7), (0,), (0, 8)])
def test_sums_are_those_of_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, y = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    found = add(x, y)
    assert found.shape == x.shape
    assert_same_bits(found, x + y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("distance", [0, 1, 4097, 32768])
def test_every_16_bit_number_is_read_rounded_and_written_as_torch_does(dtype: torch.dtype, distance: int) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    other = every.roll(distance)
    assert_same_bits(add(every, other), every + other)


def test_any_bits_of_float32_are_added_as_torch_does_with_subnormals_kept() -> None:
    every = torch.randint(-(2**31), 2**31, (100_000,)).to(torch.int32).view(torch.float32)
    other = every.roll(1)
    assert_same_bits(add(every, other), every + other)
    tiny = torch.tensor([2.0**-149, -(2.0**-149), 2.0**-127, 0.0, -0.0])
    assert_same_bits(add(tiny, tiny), tiny + tiny)


def test_16_bit_sums_round_to_nearest_even_and_overflow_to_infinity() -> None:
    x = torch.tensor([1.0, 1.0 + 2.0**-7, torch.finfo(torch.bfloat16).max], dtype=torch.bfloat16)
    y = torch.tensor([2.0**-8, 2.0**-8, torch.finfo(torch.bfloat16).max], dtype=torch.bfloat16)
    assert add(x, y).tolist() == [1.0, 1.0 + 2.0**-6, float("inf")]
    largest = torch.tensor([65504.0], dtype=torch.float16)
    assert add(largest, largest).tolist() == [float("inf")]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_larger_than_a_buffer_are_added_in_parts(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_backend.launch, "_PART_BYTES", 4096)
    x, y = torch.randn(10_001).to(dtype), torch.randn(10_001).to(dtype)
    wanted = x + y
    assert_same_bits(add(x, y), wanted)
    assert_same_bits(add(x, y, out=y), wanted)


@pytest.mark.parametrize("offset", [1, 2, 3, 4])
def test_memory_at_any_address_is_added_through_aligned_buffers(offset: int, launched: list[int]) -> None:
    memory, target = bytearray(4 * 100 + offset), bytearray(4 * 100 + offset)
    x = torch.frombuffer(memory, dtype=torch.float32, offset=offset).copy_(torch.randn(100))
    out = torch.frombuffer(target, dtype=torch.float32, offset=offset)
    assert_same_bits(add(x, x, out=out), x + x)
    assert [address % 4 for address in launched] == [0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_may_have_any_stride(dtype: torch.dtype) -> None:
    x, out = torch.randn(2).to(dtype)[::2], torch.zeros(2, dtype=dtype)[::2]
    assert_same_bits(add(x, x, out=out), x + x)


# --- memory ------------------------------------------------------------------------------------------------------


def test_the_kernel_works_on_the_tensors_own_memory(launched: list[int]) -> None:
    x, y, out = torch.randn(50), torch.randn(50), torch.empty(50)
    assert add(x, y, out=out) is out
    assert launched == [x.data_ptr(), y.data_ptr(), out.data_ptr()]


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_may_be_an_input_or_both(dtype: torch.dtype) -> None:
    for place in ("x", "y", "both"):
        x = torch.randn(1000).to(dtype)
        y = x if place == "both" else torch.randn(1000).to(dtype)
        wanted, out = x + y, y if place == "y" else x
        assert add(x, y, out=out) is out
        assert_same_bits(out, wanted)


def test_inputs_may_overlap() -> None:
    memory = torch.randn(1001)
    assert_same_bits(add(memory[:-1], memory[1:]), memory[:-1] + memory[1:])


def test_out_that_overlaps_an_input_elsewhere_gives_the_sum_of_what_was_there() -> None:
    memory = torch.randn(1001)
    wanted = memory[:-1] + memory[:-1]
    # straight to the kernel: the op refuses such a call
    assert_same_bits(implementation.add(memory[:-1], memory[:-1], out=memory[1:]), wanted)


def test_out_may_have_any_strides() -> None:
    x, y, out = torch.randn(6, 5), torch.randn(6, 5), torch.zeros(5, 6).t()
    assert add(x, y, out=out) is out
    assert_same_bits(out.contiguous(), x + y)


def test_gradients_flow_through_it() -> None:
    x, y = torch.randn(9, requires_grad=True), torch.randn(9, requires_grad=True)
    (add(x, y) * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 9


def test_threads_do_not_mix_their_arguments() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(50):
            x, y = torch.randn(300 + seed, generator=generator), torch.randn(300 + seed, generator=generator)
            if not torch.equal(add(x, y), x + y):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- selection ---------------------------------------------------------------------------------------------------


def rejections(decision: Any, kernel: str) -> list[tuple[str, str]]:
    return [(str(rejection.code), rejection.text) for rejection in decision.candidate(kernel).rejections]


def opencl_devices() -> list[Device]:
    return [device for device in portakernel.targets() if device.target.vendor == "opencl"]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(8)


def test_the_device_is_attached_to_the_cpu() -> None:
    assert {(device.torch_device, device.attached) for device in opencl_devices()} == {("cpu", True)}
    [state] = [state for state in portakernel.plugins() if state.package.name == "opencl"]
    assert (state.backend, state.broken) == (True, ())
    assert state.kernels == tuple(f"opencl.{op}" for op in OPS)


def test_without_a_policy_it_is_not_chosen_and_says_why(x: Tensor) -> None:
    decision = portakernel.explain("add", x, x)
    assert decision.chosen is not None
    assert decision.chosen.plugin != "opencl"
    text = f"runs on {opencl_devices()[0].target}, attached to {decision.request.target}: only when a policy names it"
    assert rejections(decision, "opencl.add") == [("attached_target", text)]


@pytest.mark.parametrize("name", ["opencl", "opencl.add"])
def test_it_is_chosen_where_a_policy_names_its_plugin_or_itself(x: Tensor, name: str) -> None:
    with portakernel.use(name):
        decision = portakernel.explain("add", x, x)
    assert decision.chosen is not None
    assert decision.chosen.name == "opencl.add"
    assert decision.why == "context uses it"


def test_it_is_chosen_where_the_environment_prefers_it() -> None:
    code = "import portakernel, torch; x = torch.ones(3); print(portakernel.explain('add', x, x).to_json()['why'])"
    assert run_python(code, PORTAKERNEL_PREFER="opencl") == "PORTAKERNEL_PREFER prefers it\n"


def test_named_for_tensors_that_it_cannot_take_it_is_refused_with_the_reason() -> None:
    x = torch.randn(4, 6).t()
    with pytest.raises(NoKernelError) as caught:
        add(x, x)
    codes = [code for code, _ in rejections(caught.value.decision, "opencl.add")]
    assert codes == ["layout", "layout"]


def test_asking_about_another_machine_imports_neither_torch_nor_pyopencl() -> None:
    code = """
import sys, portakernel
decision = portakernel.explain("add", target="nvidia:sm_90", dtype="bfloat16")
print([str(r.code) for r in decision.candidate("opencl.add").rejections])
print([name for name in ("torch", "pyopencl") if name in sys.modules])
print(sorted(name for name in sys.modules if name.startswith("opencl_backend.")))
"""
    # the contract of the op that this package adds says what may be asked
    # -I: nothing but what is installed has a say
    assert run_python(code, "-I") == "['vendor']\n[]\n['opencl_backend.log_softmax_contract']\n"


def test_a_compiled_graph_runs_it_even_when_tracing_is_its_first_use() -> None:
    code = """
import portakernel, torch
add = torch.compile(lambda x: portakernel.ops.add(x, x, kernel="opencl.add"), fullgraph=True, backend="eager")
print(add(torch.ones(3)).tolist())
"""
    assert run_python(code) == "[2.0, 2.0, 2.0]\n"


# --- surroundings ------------------------------------------------------------------------------------------------

USE = """
import portakernel, torch
from portakernel.errors import NoKernelError
x = torch.ones(3)
try:
    print(portakernel.ops.add(x, x, kernel="opencl.add").tolist())
except NoKernelError as error:
    print([str(rejection.code) for rejection in error.decision.candidate("opencl.add").rejections])
"""


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_it_works_where_the_home_directory_cannot_be_written(tmp_path: Path, variable: str) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_text("", encoding="utf-8")
    without = {"XDG_CACHE_HOME": "", "HOME": str(tmp_path), "POCL_CACHE_DIR": "", variable: str(no_folder)}
    code = f"import os; os.environ.pop('POCL_CACHE_DIR'); os.environ['TMPDIR'] = {str(tmp_path)!r}\n{USE}"
    assert run_python(code, **without) == "[2.0, 2.0, 2.0]\n"
    assert list(tmp_path.iterdir()) == [no_folder]


def test_without_a_linker_it_is_refused_before_pocl_aborts_the_process() -> None:
    if str(opencl_devices()[0].target) != "opencl:pocl":
        pytest.skip("PoCL is not the OpenCL driver here")
    assert run_python(USE, PATH="") == "['missing_toolchain']\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_is_refused_instead_of_waiting_for_threads_that_it_lacks() -> None:
    code = f"""
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of fork among threads: the point here
{USE}
import sys; sys.stdout.flush()
child = os.fork()
if child == 0:
    exec({USE!r})
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    assert run_python(code) == "[2.0, 2.0, 2.0]\n['cannot_run']\n"
