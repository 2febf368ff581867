"""Calling plugins' code, which may raise anything, never return, or call back.

It runs in a thread of its own, for which the caller waits within a bound: Python can end no thread, but it can stop
waiting for one. What the thread does after that goes nowhere. Contexts (``contextvars``) are the caller's; what is
the thread's own in torch (grad mode, dispatch modes, the current device and stream) is as in a new thread.

There is no such thread, and so no bound, while the caller is importing a module: it holds the module's lock, and what
a plugin imports in another thread might wait for that.
"""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from portakernel.errors import NotReturnedError
from portakernel.text.printable import exception_text, logger

T = TypeVar("T")

# After how long the log names what is waited for, and after how long nobody waits any more, unless
# PORTAKERNEL_PATIENCE_S says otherwise.
WARN_S = 5.0
PATIENCE_S = 60.0
# The foreign code that is being called, outermost first.
_WITHIN: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("_WITHIN", default=())
_log = logger()


@dataclass(frozen=True, slots=True)
class Returned(Generic[T]):
    """What foreign code returned."""

    value: T


@dataclass(frozen=True, slots=True)
class Raised:
    """What foreign code raised, or that it did not return (``NotReturnedError``)."""

    error: BaseException

    def __str__(self) -> str:
        if isinstance(self.error, NotReturnedError):
            return str(self.error)
        return f"raised {exception_text(self.error)}"


def call_bounded(what: str, function: Callable[[], T], patience_s: float) -> Returned[T] | Raised:
    """How ``function`` ended, waited for ``patience_s`` at most (0: for as long as it takes).

    ``what`` names it for the log (``"portakernel_targets of acme (acme-dist 1.0)"``). A ``KeyboardInterrupt`` is never
    kept, but raised, and so is whatever interrupts the caller while it waits.
    """
    if patience_s <= 0 or _is_importing():
        return call_contained(function, what)
    outcome: list[Returned[T] | Raised] = []
    done = threading.Event()

    def run() -> None:
        _WITHIN.set((*_WITHIN.get(), what))
        try:
            outcome.append(Returned(function()))
        except BaseException as error:  # noqa: BLE001 - the plugin border: the caller decides what comes of it
            outcome.append(Raised(error))
        finally:
            done.set()

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name=f"portakernel: {what}", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system gives no thread, or the interpreter is about to end
        return call_contained(function, what)
    if not done.wait(min(WARN_S, patience_s)) and patience_s > WARN_S:
        text = "portakernel waits for %s, for %g s so far; after %g s it goes on without (PORTAKERNEL_PATIENCE_S)"
        _log.warning(text, what, WARN_S, patience_s)
        done.wait(patience_s - WARN_S)
    if not outcome:
        return Raised(NotReturnedError(patience_s))
    (ended,) = outcome
    if isinstance(ended, Raised) and isinstance(ended.error, KeyboardInterrupt):
        raise ended.error
    return ended


def call_contained(function: Callable[[], T], what: str = "") -> Returned[T] | Raised:
    """How ``function`` ended, run in this thread: for what is called too often for a thread of its own."""
    token = _WITHIN.set((*_WITHIN.get(), what))
    try:
        return Returned(function())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the plugin border: Rust's panics are no Exceptions
        return Raised(error)
    finally:
        _WITHIN.reset(token)


def is_within(what: str) -> bool:
    """Whether this is called by the foreign code that ``what`` names."""
    return what in _WITHIN.get()


def _is_importing() -> bool:
    """Whether the current thread is importing a module."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
