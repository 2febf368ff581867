"""A new op is two new files: nothing that exists knows of it, and everything works."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTRACT = """
from portakernel.contract import Case, Contract, Cost, Parameter, Result, TensorArgument, Tolerance


def cost(dims, itemsizes, values):
    return Cost(bytes=2 * dims["M"] * itemsizes["x"], flops=dims["M"])


CONTRACT = Contract(
    op="scale_by",
    summary="A tensor times a number.",
    formula="x * factor",
    tensors=(TensorArgument("x", ("*M",), ("float32", "bfloat16")),),
    parameters=(Parameter("factor", 2.0),),
    outputs=(Result("y", ("*M",), like="x"),),
    gradient="kernel",
    kept=(),
    stands_for={"x": "grad_y"},
    inplace=("x",),
    cases=(Case("odd", (33,)), Case("sliced", (3, 9), layouts={"x": "sliced"}, parameters={"factor": -0.5})),
    tolerance=Tolerance({"float32": 0.5, "bfloat16": 0.51}, backward={"float32": 0.5, "bfloat16": 0.51}),
    cost=cost,
    source="arithmetic",
)
"""
REFERENCE = """
def forward(x, *, factor, out=None):
    y = x * factor
    return y.contiguous() if out is None else out.copy_(y)


def backward(grad_y, *, factor, needs=(True,)):
    return ((grad_y * factor).contiguous() if needs[0] else None,)


def magnitudes(grad_y, *, factor):
    return ((grad_y * factor).abs(),)
"""
PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import portakernel.contracts, portakernel.references
portakernel.contracts.__path__.append(sys.argv[1] + "/contracts")
portakernel.references.__path__.append(sys.argv[1] + "/references")
import json
import torch
import portakernel
from portakernel_kit.conformance.runner import check
from portakernel.runtime import dispatcher

x = torch.arange(6.0).reshape(2, 3).requires_grad_()
y = portakernel.ops.scale_by(x, factor=3.0)
y.sum().backward()
compiled = torch.compile(lambda t: portakernel.ops.scale_by(t, factor=3.0), backend="aot_eager", fullgraph=True)
results = list(check(dispatcher(), plugin="reference", op="scale_by", seed=1))
print(json.dumps({
    "y": y.tolist(),
    "gradient": x.grad.tolist(),
    "compiled": compiled(x.detach()).tolist(),
    "out": portakernel.ops.scale_by(x.detach(), out=torch.empty(2, 3)).tolist(),
    "explained": portakernel.explain("scale_by", target="nvidia:sm_90", dtype="bfloat16").chosen.name,
    "bound": portakernel.bind("scale_by", x.detach())(x.detach()).tolist(),
    "failed": [str(result) for result in results if result.status == "failed"],
    "passed": len([result for result in results if result.status == "passed"]),
}))
"""


def test_an_op_is_added_by_adding_two_files(
    python: Callable[..., Any], imported_to_compile: tuple[str, ...], tmp_path: Path
) -> None:
    for folder, text in (("contracts", CONTRACT), ("references", REFERENCE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scale_by.py").write_text(textwrap.dedent(text), encoding="utf-8")
    ran = python("-c", PROGRAM, tmp_path, cwd=tmp_path, imports=imported_to_compile)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    tripled = [[0.0, 3.0, 6.0], [9.0, 12.0, 15.0]]
    assert found["y"] == found["compiled"] == tripled
    assert found["gradient"] == [[3.0] * 3] * 2
    assert found["out"] == found["bound"] == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    assert found["explained"] == "reference.scale_by"
    assert found["failed"] == []
    assert found["passed"] > 20
