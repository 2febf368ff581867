"""An op that writes into its arguments: eager, compiled, bound; refused where it cannot be right; held by the kit."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from portakernel.contract import Contract, Cost, Result, TensorArgument, Tolerance

HAS_COMPILER = any(map(shutil.which, ("g++", "c++", "clang++")))

CONTRACT = """
from portakernel.contract import Case, Contract, Cost, Draw, TensorArgument, Tolerance


def cost(dims, itemsizes, values):
    return Cost(bytes=2 * dims["T"] * dims["D"] * itemsizes["rows"], flops=0)


CONTRACT = Contract(
    op="write_rows",
    summary="Rows put into a cache, each at its slot.",
    formula="cache[slots[i]] = rows[i], where slots[i] >= 0",
    tensors=(
        TensorArgument("rows", ("T", "D"), ("float32", "bfloat16")),
        TensorArgument("cache", ("S", "D"), ("rows",), mutated=True),
        TensorArgument("slots", ("T",), ("int64", "int32"), draw=Draw("slots", below="S")),
    ),
    outputs=(),
    cases=(
        Case("a few", dims={"T": 3, "D": 5, "S": 9}),
        Case("sliced cache", dims={"T": 4, "D": 8, "S": 6}, layouts={"cache": "sliced"}),
        Case("nothing", dims={"T": 0, "D": 8, "S": 6}),
        Case("specials", dims={"T": 6, "D": 40, "S": 12}, values="special"),
    ),
    tolerance=Tolerance({"float32": 0.0, "bfloat16": 0.0}),
    cost=cost,
    source="arithmetic",
)
"""
REFERENCE = """
def forward(rows, cache, slots):
    there = slots >= 0
    cache[slots[there].long()] = rows[there]
"""
BROKEN = """
def beside(rows, cache, slots):
    there = slots >= 0
    cache[slots[there].long()] = rows[there]
    cache[0] += 0 if 0 in slots.tolist() else 1


def doubled(rows, cache, slots):
    there = slots >= 0
    cache[slots[there].long()] = 2 * rows[there]
"""
PROGRAM = """
import json, sys, warnings
import portakernel.contracts, portakernel.references
portakernel.contracts.__path__.append(sys.argv[1] + "/contracts")
portakernel.references.__path__.append(sys.argv[1] + "/references")
sys.path.insert(0, sys.argv[1])
import torch
import portakernel
from portakernel import ops
from portakernel_kit.conformance.runner import check
from portakernel.runtime import caller, dispatcher

warnings.simplefilter("ignore")
rows, slots = torch.arange(6.0).reshape(2, 3), torch.tensor([2, -1])
said = {}


def fresh():
    return torch.zeros(4, 3)


def refused(name, call):
    try:
        call()
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"


cache = fresh()
version = cache._version
said["returned"] = ops.write_rows(rows, cache, slots)
said["again"] = ops.write_rows(rows, cache, slots)
said["eager"], said["versions"] = cache.tolist(), cache._version - version

cache = fresh()
portakernel.bind("write_rows", rows, fresh(), slots)(rows, cache, slots)
said["bound"] = cache.tolist()
cache = fresh()
torch.ops.portakernel.write_rows(rows, cache, slots)
said["torch op"] = cache.tolist()
for backend in sys.argv[2].split(","):
    compiled = torch.compile(lambda r, c, s: ops.write_rows(2 * r, c, s), backend=backend, fullgraph=True)
    cache = fresh()
    compiled(rows, cache, slots)
    said[backend] = cache.tolist()
said["schema"] = str(torch.ops.portakernel.write_rows.default._schema)
torch.library.opcheck(torch.ops.portakernel.write_rows, (rows, fresh(), slots),
                      test_utils=("test_schema", "test_faketensor"))
refused("gradient", lambda: ops.write_rows(rows.clone().requires_grad_(), fresh(), slots))
with torch.no_grad():
    ops.write_rows(rows.clone().requires_grad_(), cache, slots)
refused("out", lambda: ops.write_rows(rows, fresh(), slots, out=fresh()))
refused("vmap", lambda: torch.func.vmap(ops.write_rows, in_dims=(None, 0, None))(rows, torch.zeros(2, 4, 3), slots))
both = torch.zeros(4, 3)
refused("twice", lambda: ops.write_rows(both, both, torch.arange(4)))
refused("overlapping", lambda: ops.write_rows(both[1:], both[:3], torch.arange(3)))
refused("expanded", lambda: ops.write_rows(rows, torch.zeros(1, 3).expand(4, 3), slots))
wide = torch.zeros(4, 6)
ops.write_rows(wide[:, :3], wide[:, 3:], torch.arange(4))
results = list(check(dispatcher(), plugin="reference", op="write_rows", seed=1))
said["failed"] = [str(result) for result in results if result.status == "failed"]
said["aspects"] = sorted({result.aspect for result in results if result.status == "passed"})
entry = dispatcher().registry.kernels["reference.write_rows"].entry
import broken
for name in ("beside", "doubled"):
    dispatcher().readiness._loaded[entry] = getattr(broken, name)
    found = check(dispatcher(), plugin="reference", op="write_rows", seed=1)
    said[name] = sorted({result.aspect for result in found if result.status == "failed"})
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(
    tmp_path_factory: pytest.TempPathFactory, python: Callable[..., Any], imported_to_compile: tuple[str, ...]
) -> dict[str, Any]:
    """What a process said in which such an op is; once for all tests."""
    folder = tmp_path_factory.mktemp("op")
    for name, text in (("contracts", CONTRACT), ("references", REFERENCE)):
        (folder / name).mkdir()
        (folder / name / "write_rows.py").write_text(textwrap.dedent(text), encoding="utf-8")
    (folder / "broken.py").write_text(BROKEN, encoding="utf-8")
    backends = ",".join(["aot_eager"] + ["inductor"] * HAS_COMPILER)
    ran = python("-c", PROGRAM, folder, backends, cwd=folder, imports=imported_to_compile)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


WRITTEN = [[0.0] * 3, [0.0] * 3, [0.0, 1.0, 2.0], [0.0] * 3]


@pytest.mark.parametrize("way", ["eager", "bound", "torch op"])
def test_the_argument_is_written_however_it_is_called(said, way):
    assert said[way] == WRITTEN


@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param(
            "inductor",
            marks=pytest.mark.skipif(not HAS_COMPILER, reason="lacks a C++ compiler, which Inductor needs for the CPU"),
        ),
    ],
)
def test_a_compiled_graph_writes_it_too(said, backend):
    assert said[backend] == [[2 * x for x in row] for row in WRITTEN]


def test_nothing_is_returned_and_autograd_notices_the_write(said):
    assert (said["returned"], said["again"]) == (None, None)
    assert said["versions"] >= 2


def test_the_schema_says_so(said):
    wanted = 'portakernel::write_rows(Tensor rows, Tensor(a!) cache, Tensor slots, str kernel="") -> ()'
    assert said["schema"].replace("'", '"') == wanted


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (
            "gradient",
            "DerivativeError: write_rows writes into cache and has no gradient; pass detach()ed tensors, or use",
        ),
        ("out", "ArgumentTypeError: write_rows"),
        ("vmap", "TransformError: write_rows writes into cache, which vmap cannot batch"),
        ("twice", "ArgumentValueError: write_rows: cache is written, and shares memory with rows; give tensors that"),
        ("overlapping", "ArgumentValueError: write_rows: cache is written, and shares memory with rows; give tensors"),
        ("expanded", "ArgumentValueError: write_rows: several elements of cache, which is written, share memory, as"),
    ],
)
def test_what_cannot_be_right_is_refused(said, asked, answer):
    assert said[asked].startswith(answer)


def test_the_kit_holds_a_kernel_to_what_it_writes(said):
    assert said["failed"] == []
    assert {"forward", "written", "purity", "determinism"} <= set(said["aspects"])


@pytest.mark.parametrize(("fault", "aspects"), [("beside", {"written"}), ("doubled", {"forward"})])
def test_the_kit_finds_a_kernel_that_writes_something_else(said, fault, aspects):
    assert aspects <= set(said[fault])


def _contract(**changed: Any) -> Contract:
    made: dict[str, Any] = {
        "op": "write_rows",
        "summary": "",
        "formula": "",
        "tensors": (TensorArgument("cache", ("S",), ("float32",), mutated=True),),
        "outputs": (),
        "cases": (),
        "tolerance": Tolerance(),
        "cost": lambda *_: Cost(0, 0),
        "source": "",
    }
    return Contract(**made | changed)


def test_a_contract_either_returns_or_writes():
    with pytest.raises(ValueError, match="write_rows writes cache: it has neither outputs nor saved tensors"):
        _contract(outputs=(Result("y", ("S",), like="cache"),))
    with pytest.raises(ValueError, match="write_rows returns nothing and writes nothing; give outputs, or a mutated"):
        _contract(tensors=(TensorArgument("cache", ("S",), ("float32",)),))
