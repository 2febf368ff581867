r"""portakernel's ops inside SGLang: ``enable``, ``disable``, ``report``.

SGLang loads ``sglang_plugin.enable_by_environment`` in each of its processes, which does nothing unless
PORTAKERNEL_CLIENTS says so: ``sglang:rms_norm,silu_and_mul``, or ``sglang`` for all. In a process of one's own::

    from portakernel.integrations import sglang as integration

    print(integration.enable())  # what is hooked, what is not, and why
    ...
    print(*integration.report(), sep="\n")  # what was served, bypassed or left to SGLang, and why

docs/clients.md says what is served and what is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from portakernel.integrations.sglang.requirements import TESTED
from portakernel.integrations.versions import UnsupportedVersionError

if TYPE_CHECKING:
    from portakernel.integrations.ledger import Row
    from portakernel.integrations.outcome import Outcome

__all__ = ["UnsupportedVersionError", "disable", "enable", "report"]


def enable(ops: Iterable[str] | None = None) -> Outcome:
    """Hooks SGLang's layers so that portakernel's ops compute them; what was hooked.

    ``ops`` are words of PORTAKERNEL_CLIENTS; None takes all. SGLang's hooks are applied at once, other plugins'
    included. Calling it again changes nothing that is in place.

    Raises:
        UnsupportedVersionError: SGLang is not installed, or not in the version that this was tested with.
        MissingHookError: SGLang lacks a method that would be hooked, or did not hook it; nothing is hooked then.
        UnknownNameError: an op that serves no layer of SGLang.
        ArgumentTypeError, ArgumentValueError: ``ops`` is no sequence of names, or is empty.
    """
    TESTED.check()
    from portakernel.integrations.sglang.switch import switch

    return switch().enable(ops)


def disable() -> None:
    """Takes the hooks out of SGLang again."""
    TESTED.check()
    from portakernel.integrations.sglang.switch import switch

    switch().disable()


def report() -> tuple[Row, ...]:
    """How many calls of SGLang's layers each op served, or left to SGLang and why; and which layers were bypassed.

    Of this process: SGLang's scheduler runs in one of its own. What a captured graph replays is not counted.
    """
    from portakernel.integrations.client import client

    return client("sglang").report()
