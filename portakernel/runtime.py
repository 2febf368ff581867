"""What the process has one of: the dispatcher, and each op's registration with its key table. Made on first use."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from portakernel.config import Config, unknown_variables
from portakernel.contracts import contracts
from portakernel.dispatch import Dispatcher
from portakernel.errors import ConfigWarning
from portakernel.locks import make_lock

if TYPE_CHECKING:
    from portakernel.call import OpCaller
    from portakernel.torch_bridge.registration import Bridge

_lock = make_lock()  # a cache alone would build two when two threads come first


@functools.cache
def _dispatcher() -> Dispatcher:
    for text in unknown_variables():
        warnings.warn(text, ConfigWarning, stacklevel=3)
    config = Config.from_environment()
    made = Dispatcher(config=config)
    if config.log == "summary":
        from portakernel.summary import Summary

        Summary().register()
    return made


def dispatcher() -> Dispatcher:
    """The process's dispatcher, made from what is installed and the environment."""
    with _lock:
        return _dispatcher()


class _Bridges:
    """Every op's registration; made once, though making them asks torch for ops that are not there yet."""

    def __init__(self) -> None:
        self.made: Mapping[str, Bridge] = {}
        self._making = False

    def make(self) -> Mapping[str, Bridge]:
        """All of them, or where they are being made none; the lock is held."""
        if not self.made and not self._making:
            from portakernel.call import OpCaller
            from portakernel.torch_bridge.registration import Bridge

            self._making = True
            try:
                self.made = {op: Bridge(OpCaller(contract, dispatcher())) for op, contract in contracts().items()}
            finally:
                self._making = False
        return self.made


_bridges = _Bridges()


def caller(op: str) -> OpCaller:
    """The caller of ``op``; the first one asked for registers every op in ``torch.ops.portakernel``."""
    with _lock:
        return _bridges.make()[op].caller


def register() -> bool:
    """Registers every op in ``torch.ops.portakernel``; false while this thread is about it."""
    with _lock:
        return bool(_bridges.make())


def callers_so_far() -> list[OpCaller]:
    """The callers there are by now; none are made for the sake of asking."""
    with _lock:
        return [bridge.caller for bridge in _bridges.made.values()]
