"""An op of one's own: of its contract, formula and gradient follow calls, checks, autograd and torch.compile.

Prints, on a CPU::

    relu_squared of [-2.0, 0.0, 3.0] is [0.0, 0.0, 9.0], by reference.relu_squared
    its gradient is [0.0, 0.0, 6.0], and so in a compiled graph: True
"""

import sys
import tempfile
from pathlib import Path

import torch

import portakernel
from portakernel import ops
from portakernel.authoring import Case, Contract, Cost, Result, TensorArgument, Tolerance

CONTRACT = Contract(  # `portakernel new op NAME` writes a whole package, whose tests hold kernels to it
    op="relu_squared",
    summary="The square of what is above zero.",
    formula="max(x, 0) ** 2",
    tensors=(TensorArgument("x", ("*M", "N"), ("float32", "bfloat16")),),
    outputs=(Result("y", ("*M", "N"), like="x"),),
    gradient="kernel",
    cases=(Case("rows", (3, 5), {"N": 33}), Case("sliced rows", (4,), {"N": 16}, layouts={"x": "sliced"})),
    tolerance=Tolerance({"float32": 1.0, "bfloat16": 0.51}, backward={"float32": 1.0, "bfloat16": 0.51}),
    cost=lambda dims, itemsizes, values: Cost(2 * dims["M"] * dims["N"] * itemsizes["x"], dims["M"] * dims["N"]),
    source="So et al. 2021, Primer, arXiv 2109.08668",
)
REFERENCE = """\
def forward(x, *, out=None):
    y = x.clamp(min=0).square().contiguous()
    return y if out is None else out.copy_(y)
def backward(grad_y, x, *, needs):
    return ((2 * grad_y * x.clamp(min=0)).contiguous() if needs[0] else None,)
def magnitudes(grad_y, x):  # what rounding of the gradient is measured by
    return (2 * grad_y.abs() * x.clamp(min=0),)
"""
OPS = "ops: [{contract: tiny_op:CONTRACT, reference: tiny_op.reference}]"
TEXTS = {
    "tiny_op/plugin.yaml": f"{{schema_version: 1, plugin_api: 2, plugin: tiny_op, {OPS}, kernels: []}}",
    "tiny_op/__init__.py": Path(__file__).read_text(encoding="utf-8"),
    "tiny_op/reference.py": REFERENCE,
    "tiny_op-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny_op\nVersion: 1.0\n",
    "tiny_op-1.0.dist-info/entry_points.txt": "[portakernel]\ntiny_op = tiny_op\n",
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as site:
        for name, text in TEXTS.items():
            Path(site, name).parent.mkdir(exist_ok=True)
            Path(site, name).write_text(text, encoding="utf-8")
        sys.path.insert(0, site)
        x = torch.tensor([-2.0, 0.0, 3.0], requires_grad=True)
        y = ops.relu_squared(x)
        y.sum().backward()
        print(f"relu_squared of {x.tolist()} is {y.tolist()}, by {portakernel.stats()[0].kernel}")
        (again,) = torch.autograd.grad(torch.compile(ops.relu_squared, fullgraph=True)(x).sum(), x)
        print(f"its gradient is {x.grad.tolist()}, and so in a compiled graph: {torch.equal(again, x.grad)}")
