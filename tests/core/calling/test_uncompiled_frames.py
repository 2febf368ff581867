"""torch.compile looks at functions that are entered below one it could not compile: ours run as they are written."""

import re
from contextlib import suppress

import pytest
import torch
from torch._dynamo.convert_frame import input_codes
from torch._dynamo.eval_frame import skip_code

import portakernel
from portakernel.calling.fast.generated import MARK
from portakernel.errors import ArgumentValueError


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def looked_at(function, *arguments):
    """The result of ``function``, which cannot be compiled, and which functions of ours Dynamo looked at below it."""
    skip_code(function.__code__)
    with torch._dynamo.config.patch(recompile_limit=1):
        result = torch.compile(function, backend="eager")(*arguments)
    codes = [code for reference in input_codes.seen if (code := reference()) is not None]
    folder = portakernel.__path__[0]
    return result, {f"{c.co_filename}:{c.co_name}" for c in codes if c.co_filename.startswith((folder, MARK))}


def call(x, weight):
    return portakernel.ops.rms_norm(x, weight)


def call_as_written(x, weight, **arguments):
    """The call after others that are not alike, each a graph of its own, until Dynamo leaves the op to Python."""
    for size in range(2, 5):
        portakernel.ops.rms_norm(x.detach()[:, :size].clone(), weight[:size].clone())
    return portakernel.ops.rms_norm(x, weight, **arguments)


def out(x, weight):
    return call_as_written(x, weight, out=torch.empty_like(x))


def training(x, weight):
    leaf = x.clone().requires_grad_()
    call_as_written(leaf, weight).square().sum().backward()
    return leaf.grad


def second_derivative(x, weight):
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(call_as_written(leaf, weight).square().sum(), leaf, create_graph=True)
    first.square().sum().backward()
    return leaf.grad


def in_a_policy_block(x, weight):
    with portakernel.policy(deny="reference.rms_norm"):
        return call_as_written(x, weight)


def strict(x, weight):
    return call_as_written(x, weight, kernel="reference.rms_norm")


def refused(x, weight):
    with suppress(ArgumentValueError):
        portakernel.ops.rms_norm(x, weight, out=x.new_empty(3))
    return call_as_written(x, weight)


def torch_op(x, weight):
    return torch.ops.portakernel.rms_norm(x, weight)


def bound(x, weight):
    return portakernel.bind("rms_norm", x, weight)(x, weight)


def explained(x, weight):
    return portakernel.explain("rms_norm", x, weight).chosen.name


WAYS = [call, call_as_written, out, training, second_derivative, in_a_policy_block, strict, refused, torch_op]


@pytest.mark.parametrize("function", [*WAYS, bound, explained], ids=lambda function: function.__name__)
def test_nothing_but_the_op_itself_is_looked_at(function):
    skip_code(call_as_written.__code__)
    arguments = torch.randn(3, 16), torch.randn(16)
    wanted = function(*arguments)
    result, seen = looked_at(function, *arguments)
    op = {torch_op: set(), explained: set(), bound: {f"{MARK}bound.rms_norm>:call"}}
    assert {re.sub(r" #\d+", "", name) for name in seen} == op.get(function, {f"{MARK}ops.rms_norm>:rms_norm"})
    assert result == wanted if isinstance(wanted, str) else torch.equal(result, wanted)


def test_an_op_that_is_made_there_is_made_as_written(monkeypatch):
    monkeypatch.delitem(portakernel.ops.__dict__, "rms_norm", raising=False)
    _, seen = looked_at(call, torch.randn(3, 16), torch.randn(16))
    assert [name.rpartition(":")[2] for name in seen] == ["rms_norm"]


def test_the_op_alone_is_compiled_when_it_is_what_is_compiled():
    x, weight = torch.randn(3, 16), torch.randn(16)
    compiled = torch.compile(portakernel.ops.rms_norm, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), portakernel.ops.rms_norm(x, weight))
