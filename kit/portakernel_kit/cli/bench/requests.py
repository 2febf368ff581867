"""The requests that a command line of ``portakernel bench`` asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from portakernel.cli.explain.command import read_names, read_parameters, read_shapes
from portakernel.contract import GridRow
from portakernel.contract.grids import Shapes
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.errors import ArgumentValueError
from portakernel.warming.outcome import Call
from portakernel.words.target import Device
from portakernel_kit.bench.question import DType, Question, drawn_rows, launch_row, questions, rows_of

# Of an op whose sizes are all for accelerators: how many are drawn before the next op's turn.
_MOST_DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Words:
    """Options as they were given; where there are no shapes, an op's own rows are meant.

    ``trained``: of requests that are drawn, only those whose gradients somebody may want.
    """

    shapes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    launch: bool = False
    quick: bool = False
    drawn: int = 0
    seed: int = 0
    trained: bool = False

    def questions(self, ops: Sequence[str], where: Device) -> list[Question]:
        """The requests, op by op.

        Raises:
            UnknownNameError, ArgumentTypeError, ArgumentValueError: the words make no request of an op.
        """
        if self.drawn:
            return self._drawn(ops, where)
        if (self.shapes or self.parameters) and len(ops) != 1:
            raise ArgumentValueError(f"--shape and --set are of one op; name it alone ({len(ops)} are asked for)")
        found: list[Question] = []
        for op in ops:
            asked = questions(op, self.rows(op), self._dtypes(where), where.target)
            on_cpu = where.torch_device == "cpu" and not self.shapes
            if on_cpu and all(question.too_large(on_cpu=True, free_bytes=None) for question in asked):
                asked += questions(op, [launch_row(op)], self._dtypes(where), where.target)
            found += asked
        return found

    def _drawn(self, ops: Sequence[str], where: Device) -> list[Question]:
        """As many requests as are asked for, op after op in turn; what is for accelerators is left out on a CPU."""
        given = {"--shape": self.shapes, "--set": self.parameters, "--launch": self.launch, "--quick": self.quick}
        if others := [name for name, value in given.items() if value]:
            raise ArgumentValueError(f"--drawn draws sizes; leave out {' and '.join(others)}")
        on_cpu = where.torch_device == "cpu"
        rows = [self._rows(op) for op in ops]
        found: list[Question] = []
        for n in range(self.drawn):
            op, sizes = ops[n % len(ops)], islice(rows[n % len(ops)], _MOST_DRAWS)
            asked = (questions(op, [row], self._dtypes(where), where.target) for row in sizes)
            fitting = (each for each in asked if not any(q.too_large(on_cpu=on_cpu, free_bytes=None) for q in each))
            found += next(fitting, [])
        return found

    def _rows(self, op: str) -> Iterator[GridRow]:
        return (row for row in drawn_rows(op, self.seed) if row.trained or not self.trained)

    def _dtypes(self, where: Device) -> list[DType]:
        return dtype_sets(self.dtypes) or ["float32" if where.torch_device == "cpu" else "bfloat16"]

    def rows(self, op: str) -> list[GridRow]:
        """The sizes of ``op`` to measure."""
        values = read_parameters(op, self.parameters)
        if self.shapes:
            return [GridRow(_case_name(shapes, values), shapes, values) for shapes in shape_sets(self.shapes)]
        known = (launch_row(op),) if self.launch else rows_of(op, core_only=self.quick)
        suffix = "".join(f" {name}={value}" for name, value in values.items())
        return [replace(row, name=row.name + suffix, values={**row.values, **values}) for row in known]


def questions_of(calls: Sequence[Call], where: Device) -> list[Question]:
    """The requests of a file's calls, each once.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: a call does not fit its op.
    """
    found: dict[str, Question] = {}
    for call in calls:
        op, memory = contract(call.op), call.memory
        request = ask(
            op,
            where.target,
            dtypes=call.dtype,
            shapes=call.shape,
            formats=call.format,
            values=call.parameters,
            facts=memory.facts,
        )
        shapes = {name: tuple(shape) for name, shape in call.shape.items()}
        name = _case_name(shapes, dict(call.parameters))
        row = GridRow(f"{name}, {memory}" if str(memory) else name, shapes, dict(request.values))
        found.setdefault(f"{request} {memory}", Question(call.op, row, dict(request.dtypes), request, memory))
    return list(found.values())


def _case_name(shapes: Shapes, values: Mapping[str, Any]) -> str:
    """A row's name where it has none: its shapes and keyword arguments."""
    texts = [f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items()]
    return ", ".join([*texts, *(f"{name}={value}" for name, value in values.items())])


def shape_sets(texts: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
    """Shapes by argument; an argument that is given again begins another request."""
    groups: list[dict[str, str]] = [{}]
    for text in texts:
        name = text.partition("=")[0].strip()
        if name in groups[-1]:
            groups.append({})
        groups[-1][name] = text
    return [read_shapes(list(group.values())) or {} for group in groups]


def dtype_sets(texts: Sequence[str]) -> list[DType]:
    """Several for all arguments, each of which is measured, or those of one request by argument."""
    if texts and all("=" not in text for text in texts):
        return [text.strip() for text in dict.fromkeys(texts)]
    found = read_names("--dtype", texts)
    return [found] if found is not None else []
