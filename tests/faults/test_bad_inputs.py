"""Inputs that no call should have end in the right number or in an error that says what is accepted: never a crash."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from portakernel.contracts import own_contracts

# How a fault's call ended: with an error of portakernel's (its class and message), or with a result.
Ended = dict[str, Any]
OPS = list(own_contracts())


def _ended(call: Callable[[], object]) -> Ended:
    from portakernel.errors import PortakernelError

    try:
        call()
    except PortakernelError as error:
        return {"error": type(error).__name__, "said": str(error)}
    except Exception as error:  # noqa: BLE001 - what it is, is what is tested
        return {"foreign": type(error).__name__, "said": str(error)}
    return {"result": True}


def _example(op: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a small call."""
    from portakernel.contracts import contract
    from portakernel_kit.conformance.inputs import draw_inputs, generator

    described = contract(op)
    sizes = [(case, math.prod((*case.dims.values(), *case.leading))) for case in described.cases if not case.given]
    cases = [case for case, size in sizes if size > 1]
    case = min(cases, key=lambda case: len(case.parameters))
    made, dtypes = described.at(case.parameters), dict[str, str]()
    for name in described.typed:
        dtypes[name] = str(made.accepted_dtypes(name, dtypes)[0])
    inputs = draw_inputs(described, case, dtypes, "cpu", generator(0, op))
    return inputs.keywords(inputs.tensors)


def _broken_arguments(op: str) -> list[Ended]:
    """Each tensor in turn replaced by what is none, or is none of its kind."""
    import torch

    from portakernel import ops
    from portakernel.contracts import contract

    function, (tensors, values) = getattr(ops, op), _example(op)
    wrong: list[Any] = [3.5, "x", [1.0, 2.0], object(), torch.nn.Linear(2, 2), {}, torch.Size([2])]
    found = []
    # an array beside tensors is refused; alone it is served
    beside = sum(tensor is not None for tensor in tensors) > 1
    for place, tensor in enumerate(tensors):
        if tensor is None:
            continue
        several = [
            *wrong,
            tensor.numpy() if beside and tensor.dtype in (torch.float32, torch.int64) else tensor.tolist(),
            tensor.to(torch.complex64),
            tensor.bool(),
            tensor.float().to_sparse() if tensor.dim() else 0,
            torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        ]
        if not contract(op).tensors[place].optional:
            several.append(None)
        found += [
            {
                "what": f"{contract(op).names[place]} {type(bad).__name__}",
                **_ended(lambda row=row: function(*row, **values)),
            }
            for bad in several
            for row in [[*tensors[:place], bad, *tensors[place + 1 :]]]
        ]
    return found


@pytest.mark.parametrize("op", OPS)
def test_what_is_no_tensor_of_the_kind_is_refused_with_a_reason(fault, op):
    outcome = fault(_broken_arguments, op)
    assert outcome.status == 0, outcome.stderr
    assert len(outcome.returned) > 10
    for ended in outcome.returned:
        assert ended.get("error") in ("ArgumentTypeError", "ArgumentValueError"), ended
        assert ended["said"].startswith(f"{op}: "), ended


def _broken_values(op: str) -> list[Ended]:
    from portakernel import ops
    from portakernel.contracts import contract

    function, (tensors, values) = getattr(ops, op), _example(op)
    wrong = [math.nan, math.inf, -math.inf, 10**400, "much", b"x", [], object(), 1j, (1, 2, 3)]
    return [
        {"what": f"{parameter.name}={value!r}", **_ended(lambda asked=asked: function(*tensors, **asked))}
        for parameter in contract(op).parameters
        for value in wrong
        for asked in [{**values, parameter.name: value}]
    ]


@pytest.mark.parametrize("op", [op for op, described in own_contracts().items() if described.parameters])
def test_a_value_of_no_kind_is_refused_with_a_reason(fault, op):
    outcome = fault(_broken_values, op)
    assert outcome.status == 0, outcome.stderr
    for ended in outcome.returned:
        assert ended.get("error") in ("ArgumentTypeError", "ArgumentValueError", "UnknownNameError"), ended
        assert ended["said"].startswith(f"{op}: "), ended


def _indices(op: str, kernel: str | None, training: bool) -> Iterator[Ended]:
    """Calls with a class, a row, a position, an offset or an end that there is not."""
    import torch

    from portakernel import ops

    x = torch.randn(3, 8, requires_grad=training)
    q, table = torch.randn(1, 3, 2, 8), torch.randn(4, 4)
    packed = torch.randn(6, 2, 8)
    bad = (-1, 8, 2**31, -(2**31), 2**62)
    if op == "cross_entropy":
        calls = [lambda t=t: ops.cross_entropy(x, torch.tensor([0, t, 1]), kernel=kernel) for t in bad]
    elif op == "linear_cross_entropy":
        calls = [
            lambda t=t: ops.linear_cross_entropy(x, torch.ones(8, 8), torch.tensor([0, t, 1]), kernel=kernel)
            for t in bad
        ]
    elif op == "embedding_bag":
        starts = torch.tensor([0])
        calls = [lambda t=t: ops.embedding_bag(x[:, :4], torch.tensor([0, t]), starts, kernel=kernel) for t in bad]
        offsets = ([1, 2], [0, 5], [0, 2, 1], [0, -1], [0, 2**40])
        calls += [
            lambda o=o: ops.embedding_bag(x, torch.tensor([0, 1, 2]), torch.tensor(o), kernel=kernel) for o in offsets
        ]
    elif op == "rotary_embedding":
        calls = [
            lambda t=t: ops.rotary_embedding(q, q, table, table, torch.tensor([[0, t, 1]]), kernel=kernel) for t in bad
        ]
    else:
        ends = ([0, 3, 7], [0, 5, 3], [1, 6], [-1, 6], [0, 2**30])
        tensors = [torch.tensor(each, dtype=torch.int32) for each in ends]
        right = torch.tensor([0, 6], dtype=torch.int32)
        calls = [lambda c=c: ops.attention_varlen(packed, packed, packed, c, c, kernel=kernel) for c in tensors]
        calls += [
            lambda c=c: ops.attention_varlen(packed, packed, packed, right, c, kernel=kernel)
            for c in tensors
            if len(c) == 2
        ]
    for call in calls:
        yield _ended(call)


def _out_of_range(op: str, kernel: str | None, training: bool) -> list[Ended]:
    return list(_indices(op, kernel, training))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("op", "kernel"),
    [
        ("cross_entropy", None),
        ("cross_entropy", "reference"),
        ("linear_cross_entropy", None),
        ("embedding_bag", None),
        ("embedding_bag", "reference"),
        ("rotary_embedding", "reference"),
        ("attention_varlen", None),
        ("attention_varlen", "reference"),
    ],
)
def test_an_index_that_there_is_not_is_an_error_and_no_garbage(fault, op, kernel, training):
    outcome = fault(_out_of_range, op, kernel, training)
    assert outcome.status == 0, outcome.stderr
    assert len(outcome.returned) >= 5
    for ended in outcome.returned:
        assert ended.get("error") in ("IndexOutOfRangeError", "ArgumentValueError"), ended
        assert ended["said"].startswith(f"{op}: "), ended


def _sizes(op: str) -> list[Ended]:
    """Questions about sizes that no memory holds, or that are none."""
    import portakernel
    from portakernel.contracts import contract

    described = contract(op).at()
    first = described.tensors[0]
    rank = len(first.sizes)
    shapes = [(2**40,) * rank, (2**62,) * rank, (0,) * rank, (1,) * 40, ()]
    found = [_ended(lambda s=s: portakernel.explain(op, shape={first.name: s})) for s in shapes]
    wrong = [(-1,) * rank, (1.5,) * rank, "4x4", None, [None], {"a": 1}, (True,) * rank]
    return found + [
        {"wrong": True, **_ended(lambda s=s: portakernel.explain(op, shape={first.name: s}))} for s in wrong
    ]


@pytest.mark.parametrize("op", OPS)
def test_sizes_of_any_kind_are_answered(fault, op):
    outcome = fault(_sizes, op)
    assert outcome.status == 0, outcome.stderr
    for ended in outcome.returned:
        assert "foreign" not in ended, ended
        if ended.get("wrong"):
            assert ended["error"] in ("ArgumentTypeError", "ArgumentValueError"), ended
