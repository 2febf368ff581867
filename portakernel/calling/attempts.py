"""The kernels that a call tries in turn: the one its key stands for, and where that declines the call, the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from portakernel.calling.arguments import Tensors
from portakernel.calling.arming import ARMING, unarmed
from portakernel.calling.fast.key_layout import CallKind
from portakernel.calling.fast.keys import make_value
from portakernel.calling.key_table import Placement
from portakernel.calling.launcher import signature
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract
from portakernel.deciding.policies import Policy
from portakernel.host.forks import unsplit
from portakernel.tensors.capture import is_capturing

if TYPE_CHECKING:
    from portakernel.calling.caller import OpCaller

# What a choice made during a stream capture requires, and what marks its key.
_CAPTURED = frozenset({"graph_capture"})
# ... of one that writes over an argument, and of any other. Made here, because torch 2.11's compiled autograd, which
# may trace a backward's run, knows no ``frozenset[str]``.
_INPLACE, _NOTHING = frozenset({"inplace"}), frozenset[str]()


class Attempts:
    """One call's way to a kernel that runs it.

    ``key`` is what the call goes by, ``placement`` what stands there now, None until a decision is made; its kernel
    has the properties that the choice ``requires``.
    """

    def __init__(
        self,
        caller: OpCaller,
        kind: CallKind,
        tensors: Tensors,
        parameters: Sequence[Any],
        policy: Policy,
        key: tuple[Any, ...],
        placement: Placement | None,
    ) -> None:
        self._caller, self._policy = caller, policy
        self._kind, self._tensors, self._parameters = kind, tensors, parameters
        self.key, self.placement = key, placement
        self.requires = _INPLACE if kind.inplace else _NOTHING
        if placement is None and is_capturing():
            self._turn_to_capture()
        self._is_first = self.placement is None

    def run(self, arguments: Sequence[Any]) -> Any:
        """The result of the first kernel that does not decline the call.

        Raises:
            NoKernelError: all that could serve have declined it.
        """
        while True:
            placement = self.placed()
            try:
                return self._launched(placement, arguments) if self._is_first else placement.launch(*arguments)
            except CannotRun as error:
                rejection = error.rejection
            self.decline(placement, rejection)

    def placed(self) -> Placement:
        """The placement under the key, decided and remembered where there was none.

        Raises:
            NoKernelError: no kernel can serve.
        """
        if self.placement is None:
            with unsplit(f"a first call of {self._caller.contract.op}"):
                decided = self._caller.place(self._request(), self._policy)
                self.placement = self._caller.table.remember(self.key, decided)
        return self.placement

    def decline(self, placement: Placement, rejection: Rejection) -> None:
        """Turns to what comes after ``placement``, whose kernel has declined the call.

        Raises:
            NoKernelError: no other kernel can serve.
        """
        if rejection.code is ReasonCode.NOT_CAPTURABLE and not self.requires >= _CAPTURED:
            # another serves while the stream is captured, and this one again thereafter
            self._turn_to_capture()
        else:
            self._pass_over(placement, rejection)

    def _request(self) -> Request:
        return self._caller.request(self._kind, self._tensors, self._parameters, self.requires)

    def _launched(self, placement: Placement, arguments: Sequence[Any]) -> Any:
        """A first launch, which imports, compiles, and has torch set up what it does once: a fork waits for it."""
        with unsplit(f"the first launch of {placement.kernel.name}"):
            return placement.launch(*arguments)

    def _turn_to_capture(self) -> None:
        """Turns to the key that calls have while a stream is captured."""
        self.key, self.requires = (*self.key, _CAPTURED), self.requires | _CAPTURED
        self.placement = self._caller.table.entries.get(self.key)

    def _pass_over(self, placement: Placement, rejection: Rejection) -> None:
        """Takes the next kernel, for all calls that ``placement``'s declines for this reason.

        Where the rejection names a dimension or layout fact, only calls with that value go elsewhere: one row that is
        too long must not take the kernel from all others.
        """
        request, table = self._request(), self._caller.table
        name = rejection.parameter or ""
        value = request.value(name)
        replaced: Placement | None = placement
        if value is not None:
            _decline_at(placement, self._caller.contract, request, name, value, rejection)
            self.key, replaced = (*self.key, name, value), None
            self.placement = table.entries.get(self.key)
            if self.placement is not None:
                return
        cannot = {**placement.cannot, placement.kernel.name: rejection}
        self.placement = table.remember(self.key, self._caller.place(request, self._policy, cannot), replaced)


def _decline_at(
    placement: Placement, contract: Contract, request: Request, name: str, value: Any, rejection: Rejection
) -> None:
    """Makes ``placement`` decline calls of which ``name`` is ``value``, before its kernel is asked again."""
    if all(refused != name for refused, _ in placement.refused):
        with ARMING:
            placement.run = _declining(placement, contract, request, name)
    placement.refused[name, value] = rejection


def _declining(placement: Placement, contract: Contract, request: Request, name: str) -> Callable[..., Any]:
    """The placement's run, which declines the values of ``name`` that are in ``placement.refused``."""
    run, value_of = unarmed(placement), make_value(contract.at(request.values), name)
    places = _places(contract, request.phase)

    def declining(*arguments: Any) -> Any:
        given = (None if place is None else arguments[place] for place in places)
        rejection = placement.refused.get((name, value_of(*given)))
        if rejection is not None:
            raise CannotRun(rejection)
        return run(*arguments)

    return declining


def _places(contract: Contract, phase: Phase) -> list[int | None]:
    """The places of the op's arguments among those of a launch; None for what it is not given."""
    launched = signature(contract, phase)
    # backward is not given every argument; another tensor of its form stands for it
    names = [contract.stands_for.get(name, name) if name not in launched else name for name in contract.names]
    names += [parameter.name for parameter in contract.parameters]
    return [launched.index(name) if name in launched else None for name in names]
