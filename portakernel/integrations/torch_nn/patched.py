"""``patch``: which layers of a model ops serve from now on, which not, and what became of their calls."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from torch import nn

from portakernel.api import stats
from portakernel.errors import ArgumentTypeError
from portakernel.integrations.ledger import Row
from portakernel.integrations.torch_nn.choosing import Left, choice_of
from portakernel.integrations.torch_nn.switch import Served, rows_of, switch
from portakernel.text.printable import brief

FUNCTIONS = (
    "Functions that a model calls itself, such as torch.nn.functional.scaled_dot_product_attention, belong to no"
    " module: they are not replaced, and not listed."
)
# In inference it reads the weights of its layers and does not call them.
_ENCODER = nn.TransformerEncoderLayer


class Patched:
    """What ``patch`` did to a model, and what its layers' calls came to. As a context manager it takes that back."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._served: dict[nn.Module, Served] = {}
        self._left: list[Row] = []
        self._replaced: list[nn.Module] = []
        self._kernels_before = _kernels()
        self._patch()

    def _patch(self) -> None:
        switched, name = switch(), ""
        inside = {each for layer in self._model.modules() if isinstance(layer, _ENCODER) for each in layer.modules()}
        for path, module in self._model.named_modules():
            choice = choice_of(module)
            if choice is None:
                continue
            layer = switched.name_of(module)
            if not layer:
                name = name or switched.name_of_model(self._model)
                layer = f"{path} of {name}" if path else name
            if isinstance(choice, Left):
                self._left.append(Row(choice.op, choice.reason, 0, 0, layer))
                continue
            if not switched.name_of(module):
                switched.serve(module, layer, choice)
                self._replaced.append(module)
            self._served[module] = Served(layer, choice.op_name, module in inside)
        # a hook of an encoder layer would itself keep it from reading its layers' weights
        if self._replaced and not isinstance(self._model, _ENCODER):
            switched.watch(self._model, tuple(self._served.values()))

    def report(self) -> tuple[Row, ...]:
        """For each layer whose kind an op knows: served, bypassed (no call so far), or left, and why.

        In the model's order, those that were left from the beginning at the end. A layer of which some calls were left
        has a row for each reason. Of a compiled model ``traces`` counts: how often its graphs ran is not counted.
        """
        return (*rows_of(self._served.values()), *self._left)

    def kernels(self) -> dict[str, dict[str, int]]:
        """By op, how many calls each kernel served since ``patch``: of the whole process, trials included."""
        more = _kernels() - self._kernels_before
        ops = sorted({served.op for served in self._served.values()})
        return {op: {kernel: calls for (of, kernel), calls in more.most_common() if of == op} for op in ops}

    def unpatch(self) -> None:
        """Gives all served layers of the model back to torch, whichever ``patch`` replaced them."""
        self._restore(list(self._served))

    def _restore(self, modules: list[nn.Module]) -> None:
        if modules:
            switch().unwatch(self._model)
        for module in modules:
            switch().restore(module)

    def __enter__(self) -> Patched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives back what this ``patch`` replaced, and no earlier one."""
        self._restore(self._replaced)

    def __repr__(self) -> str:
        return brief(f"<Patched {type(self._model).__name__}: {len(self._served)} served, {len(self._left)} left>")

    def __str__(self) -> str:
        lines = [str(row) for row in self.report()]
        for op, kernels in self.kernels().items():
            told = ", ".join(f"{kernel} {calls} calls" for kernel, calls in kernels.items())
            lines.append(f"{op} by {told or 'no kernel'}, in this process since")
        return "\n".join([*lines, FUNCTIONS])


def patch(model: nn.Module) -> Patched:
    """Lets ops compute a model's ``torch.nn.RMSNorm``, ``LayerNorm``, ``Softmax`` and ``MultiheadAttention``.

    In place, instance by instance: each one's ``forward`` is replaced; weights, hooks, classes and other models stay as
    they are. Layers of subclasses, and whatever an op cannot serve, are left, and ``report()`` says why. The first call
    of each kind of every layer is computed by torch too, and both are held against the formula in float64: where the
    op is further off, the layer is torch's again, with a ``ClientWarning``. So is a layer warned of that the model's
    first step does not call. Calling it again changes nothing that is in place already::

        with portakernel.patch(model) as patched:
            model(x)
            print(patched)  # each layer: served, bypassed or left, and why; which kernels

    Raises:
        ArgumentTypeError: not a ``torch.nn.Module``.
    """
    given: object = model
    if not isinstance(given, nn.Module):
        raise ArgumentTypeError(
            f"patch takes a torch.nn.Module, whose layers it serves; {type(given).__name__} was given"
        )
    return Patched(model)


def _kernels() -> Counter[tuple[str, str]]:
    counted = Counter[tuple[str, str]]()
    for served in stats():
        counted[served.op, served.kernel] += served.calls
    return counted
