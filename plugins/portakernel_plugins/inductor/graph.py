"""One formula traced and compiled ahead: no guards of Dynamo, nothing that could compile on a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.overrides import TorchFunctionMode

from portakernel_plugins.inductor import cache_folder

try:
    from torch._dynamo.source import ConstantSource
except ImportError:  # pragma: no cover - where a later torch keeps it elsewhere
    from torch._guards import ConstantSource  # type: ignore[attr-defined,no-redef]

# A reference that unrolls over its sizes (attention's pieces) would be traced and compiled for minutes, to run slowly;
# others have tens of them.
MAX_OPERATIONS = 200
# Verdicts on free sizes are kept up to here.
_MAX_VERDICTS = 4096

# As the references compute: each rounding to 16 bits is made, and divisions are rounded as IEEE says.
# Results are contiguous: no row is padded for its alignment.
_NUMERICS = {"emulate_precision_casts": True, "emulate_division_rounding": True, "comprehensive_padding": False}
Form = tuple[tuple[int | None, ...], torch.dtype]


class CannotCompile(Exception):  # noqa: N818 - an outcome: the reason becomes a rejection
    """Inductor does not take this formula at these sizes; says why."""


@dataclass(slots=True)
class Graph:
    """A compiled formula: takes the tensors that are there, returns its results, None where there is none.

    ``exact``: the free sizes that it was compiled for alone, where the formula cannot leave them open.
    """

    run: Callable[[list[Tensor]], Sequence[Tensor]]
    exist: tuple[bool, ...]
    guards: str
    environment: ShapeEnv
    exact: tuple[int, ...] | None
    verdicts: dict[tuple[int, ...], bool] = field(default_factory=dict[tuple[int, ...], bool])

    def admits(self, free: tuple[int, ...]) -> bool:
        """Whether it was compiled for free dimensions of these sizes too."""
        if self.exact is not None:
            return free == self.exact
        verdict = self.verdicts.get(free)
        if verdict is None:
            # A graph for several rows serves one row as well: contiguous tensors have the same strides, and what
            # broadcasts over rows is no longer a question.
            several = [max(size, 2) for size in free]
            verdict = bool(not self.guards or self.environment.evaluate_guards_expression(self.guards, several))
            if len(self.verdicts) >= _MAX_VERDICTS:
                self.verdicts.clear()
            self.verdicts[free] = verdict
        return verdict

    def __call__(self, tensors: list[Tensor]) -> list[Tensor | None]:
        """The results, in fresh memory."""
        results = iter(self.run(tensors))
        return [next(results) if exists else None for exists in self.exist]


def compile_graph(
    formula: Callable[..., Sequence[Tensor | None]],
    free: tuple[int, ...],
    forms: Callable[[Sequence[Any]], Sequence[tuple[tuple[Any, ...], torch.dtype]]],
    device: torch.device,
) -> Graph:
    """``formula`` of tensors with the ``forms`` that free sizes give them; for any free sizes where that can be.

    Raises:
        CannotCompile: it cannot be traced, or Inductor cannot compile it.
    """
    try:
        return _compiled(formula, free, forms, device, exact=not free)
    except CannotCompile:
        if not free:
            raise
    return _compiled(formula, free, forms, device, exact=True)


def _compiled(
    formula: Callable[..., Sequence[Tensor | None]],
    free: tuple[int, ...],
    forms: Callable[[Sequence[Any]], Sequence[tuple[tuple[Any, ...], torch.dtype]]],
    device: torch.device,
    *,
    exact: bool,
) -> Graph:
    environment = ShapeEnv(duck_shape=False)
    # numbers beside tensors (torch.where) become tensors that are not fake
    fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    symbols = [] if exact else [_symbol(environment, f"free{place}", size) for place, size in enumerate(free)]
    with fake:
        inputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in forms(symbols or free)]
    try:
        with torch.no_grad(), inductor_config.patch(_settings()), tracing(TracingContext(fake)):
            with fake:
                traced, exist = _trace(formula, inputs)
            _check_open(environment, symbols)
            compiled: Any = compile_fx_inner(traced, inputs, is_inference=True)
            _check_open(environment, symbols)
    except CannotCompile:
        raise
    except Exception as error:
        raise CannotCompile(f"{type(error).__name__}: {_first_line(error)}") from error
    guards = environment.produce_guards_expression(symbols) if symbols else None
    return Graph(compiled, exist, guards or "", environment, free if exact else None)


def _check_open(environment: ShapeEnv, symbols: Sequence[Any]) -> None:
    """Nothing, while the free sizes are still free: a formula that loops over one, or asks for it, fixes it."""
    if any(environment.replace(symbol.node.expr).is_number for symbol in symbols):
        raise CannotCompile("the formula fixes a size that should be free")


def _settings() -> dict[str, bool]:
    known = inductor_config.get_config_copy()
    wanted = {**_NUMERICS, **cache_folder.settings()}
    return {name: value for name, value in wanted.items() if name in known} | {"triton.cudagraphs": False}


def _symbol(environment: ShapeEnv, name: str, size: int) -> Any:
    source, hint = ConstantSource(name), max(size, 2)
    symbol = environment.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    return environment.create_symintnode(symbol, hint=hint, source=source)


def _trace(
    formula: Callable[..., Sequence[Tensor | None]], inputs: Sequence[Tensor]
) -> tuple[GraphModule, tuple[bool, ...]]:
    """The formula as a graph of functional operators that returns new tensors, and which results there are."""
    exist: tuple[bool, ...] = ()

    def present(*tensors: Tensor) -> list[Tensor]:
        nonlocal exist
        with _Counted():
            found = formula(*tensors)
        exist = tuple(result is not None for result in found)
        return [result.contiguous() for result in found if result is not None]

    # torch's decompositions in Python keep symbols that those in C++ would ask for their value
    with enable_python_dispatcher():
        traced = make_fx(dispatch_functionalize(present), decomposition_table=select_decomp_table())(*inputs)
    traced.graph.eliminate_dead_code()
    if any(node.target is torch.ops.aten.copy_.default for node in traced.graph.nodes):
        raise CannotCompile("the formula writes to its arguments")
    _separate(traced)
    return traced, exist


class _Counted(TorchFunctionMode):
    """Ends a trace once it has too many operations: each costs milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self._count += isinstance(found, Tensor)
        if self._count > MAX_OPERATIONS:
            raise CannotCompile(f"the formula has more than {MAX_OPERATIONS} operations at these sizes")
        return found


def _separate(traced: GraphModule) -> None:
    """Results that are inputs, or one another, become copies: what a kernel returns is memory of its own."""
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    seen: set[Any] = set()
    results = []
    for result in output.args[0]:
        if result.op == "placeholder" or result in seen:
            with traced.graph.inserting_before(output):
                copy = traced.graph.call_function(torch.ops.aten.clone.default, (result,))
            copy.meta.update(result.meta)
            result = copy  # noqa: PLW2901
        seen.add(result)
        results.append(result)
    output.args = (results,)
    traced.recompile()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no message"
