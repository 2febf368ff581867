"""What the process has one of: the dispatcher, and each op's registration with its key table. Made on first use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from portakernel.config import Config
from portakernel.contract import Contract
from portakernel.contracts import contract, contracts
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import CalledBackError
from portakernel.host.forks import unsplit
from portakernel.host.locks import make_lock

if TYPE_CHECKING:
    from portakernel.calling.caller import OpCaller
    from portakernel.torch_bridge.registration import Bridge

_lock = make_lock()  # a cache alone would build two when two threads come first
# What is being made here, or by the thread that waits for this one: a plugin's hook may ask for it too.
_MAKING: ContextVar[tuple[str, ...]] = ContextVar("_MAKING", default=())


@contextmanager
def _making(what: str) -> Iterator[None]:
    """Inside, ``what`` is being made; plugins that it asks are told so, should they ask back.

    Raises:
        CalledBackError: it is being made for the same call.
    """
    if what in _MAKING.get():
        text = f"{what} is being made, which waits for what asks for it now: a plugin's hook, or the import of its"
        raise CalledBackError(f"{text} module. Ask portakernel later, when an op is called")
    # who acts for the lock's holder has it
    with nullcontext() if _MAKING.get() else _lock:
        token = _MAKING.set((*_MAKING.get(), what))
        try:
            yield
        finally:
            _MAKING.reset(token)


@functools.cache
def _dispatcher() -> Dispatcher:
    config = Config.from_environment()
    made = Dispatcher(config=config)
    if config.log == "summary":
        from portakernel.summary import Summary

        Summary(callers_so_far).register()
    return made


class _Kept:
    """The dispatcher that was made, and the function that made it; another function makes another one."""

    def __init__(self) -> None:
        self.made: tuple[Callable[[], Dispatcher], Dispatcher] | None = None


_kept = _Kept()


def dispatcher() -> Dispatcher:
    """The process's dispatcher, made from what is installed and the environment.

    Raises:
        CalledBackError: it is being made, and a plugin that is asked for its kernels asks for it.
        OSError: what is installed cannot be read at this moment; nothing is kept of the attempt.
    """
    made = _kept.made
    # policy blocks and explanations ask each time: what is there costs no lock
    if made is None or made[0] is not _dispatcher:
        with _making("portakernel's list of kernels"), unsplit("making the dispatcher"):
            made = _kept.made = _dispatcher, _dispatcher()
    # once it is kept: a warning that is an error is raised once, and what it was about is left out from then on
    made[1].process.warn_of_doubts()
    return made[1]


def made_dispatcher() -> Dispatcher | None:
    """The process's dispatcher; None before anything needed one."""
    made = _kept.made
    return None if made is None else made[1]


def contract_of(op: str) -> Contract:
    """The contract of ``op``, which a plugin may ship: then it is known once the dispatcher is made.

    Raises:
        UnknownNameError: there is no such op; offers the nearest.
    """
    if op not in contracts():
        dispatcher()
    return contract(op)


class _Bridges:
    """The ops' registrations, each made once: when its op is first used, or with all others when torch asks for one."""

    def __init__(self) -> None:
        self.made: Mapping[str, Bridge] = {}

    def make(self, op: str) -> Bridge:
        """The registration of ``op``.

        Raises:
            CalledBackError: some are being made, and what is asked meanwhile asks for this one.
        """
        return self.made.get(op) or self._with({op})[op]

    def make_all(self) -> Mapping[str, Bridge]:
        """All of them; raises as ``make`` does."""
        return self._with(None) if not self.made or contracts().keys() - self.made.keys() else self.made

    def _with(self, ops: Collection[str] | None) -> Mapping[str, Bridge]:
        """Those that were made, and of these ops, or of all."""
        with _making(_REGISTRATION), unsplit("registering the ops"):
            now = dispatcher()  # first, because plugins may ship ops
            from portakernel.calling.caller import OpCaller
            from portakernel.calling.known_callers import know
            from portakernel.torch_bridge.registration import Bridge

            if (path := Config.from_environment().record) is not None:
                from portakernel.torch_bridge.call_kinds import count_process

                count_process(path)
            missing = [op for op in (contracts() if ops is None else ops) if op not in self.made]
            self.made = {**self.made, **{op: Bridge(OpCaller(contract(op), now)) for op in missing}}
            know(callers_so_far())
        follow_shadow()
        return self.made


_REGISTRATION = "the registration of portakernel's ops"
_bridges = _Bridges()


def caller(op: str) -> OpCaller:
    """The caller of ``op``, which is registered in ``torch.ops.portakernel`` when it is first asked for.

    Raises:
        UnknownNameError: there is no such op.
    """
    return _bridges.make(contract(op).op).caller


def register() -> bool:
    """Registers every op in ``torch.ops.portakernel``; false while this thread is about it."""
    return _REGISTRATION not in _MAKING.get() and bool(_bridges.make_all())


def callers_so_far() -> list[OpCaller]:
    """The callers there are by now; none are made for the sake of asking."""
    return [bridge.caller for bridge in _bridges.made.values()]


def follow_shadow(*, anew: bool = False) -> None:
    """Has calls looked at as the policy files in force say (docs/shadow.md), once there are any.

    Raises:
        MissingPackageError: they ask for it, and what judges results is not installed.
    """
    now = made_dispatcher()
    wishes = now.process.shadow if now is not None and _bridges.made else None
    # who never asks for it does not load it
    if wishes is not None or "portakernel.shadow.process" in sys.modules:
        from portakernel.shadow.process import follow

        follow(wishes, anew=anew)
