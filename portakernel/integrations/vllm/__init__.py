"""portakernel's ops under vLLM: ``enable``, ``disable``, ``report``; ``PORTAKERNEL_CLIENTS=vllm`` enables it anywhere.

::

    $ PORTAKERNEL_CLIENTS=vllm:rms_norm,silu_and_mul vllm serve ...

vLLM's plugin loader reads that in each of its processes. A program with the engine in its own process may instead call
``enable`` before it makes the engine, and ``report`` after. vLLM's default is an engine in a process of its own, whose
workers ``worker_reports(llm)`` asks.

docs/clients.md says which layers are served, and what is left to vLLM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from portakernel.integrations.versions import UnsupportedVersionError

if TYPE_CHECKING:
    from portakernel.integrations.ledger import Row
    from portakernel.integrations.outcome import Outcome

__all__ = ["UnsupportedVersionError", "disable", "enable", "report", "worker_reports"]


def enable(ops: Iterable[str] | None = None) -> Outcome:
    """Has vLLM make its layers of classes that ask portakernel's ops first; what is replaced, and what is not.

    It holds for layers that are made from now on. ``ops`` are words as in ``PORTAKERNEL_CLIENTS=vllm:...``; None takes
    all. Calling it again changes nothing that is in place already.

    Raises:
        UnsupportedVersionError: vLLM is not installed, or not in a version that this was tested with.
        UnknownNameError: a word that has no place in vLLM.
        ExtensionPointError: vLLM has no class of a name that it should have, or another plugin's stands in its place.
    """
    from portakernel.integrations.vllm.tested import TESTED

    TESTED.check()
    from portakernel.integrations.vllm.switch import switch

    return switch().enable(ops)


def disable() -> None:
    """Takes back what ``enable`` did; layers that were made since compute by vLLM's own code again.

    A graph that is compiled stays as it is.
    """
    from portakernel.integrations.vllm.tested import TESTED

    TESTED.check()
    from portakernel.integrations.vllm.switch import switch

    switch().disable()


def report() -> tuple[Row, ...]:
    """What this process's layers came to: served, bypassed or left to vLLM, with calls, traces and reasons.

    A compiled graph does not count its calls: it is listed by its ``traces``, once for each place in the model.
    ``portakernel.stats()`` says which kernels served.
    """
    from portakernel.integrations.vllm.tested import TESTED

    TESTED.check()
    from portakernel.integrations.vllm.switch import switch

    return switch().report()


def worker_reports(llm: Any) -> tuple[tuple[Row, ...], ...]:
    """``report`` of each worker of an engine (``vllm.LLM``), in whichever process it is.

    Where the engine is a process of its own, vLLM sends functions there only with VLLM_ALLOW_INSECURE_SERIALIZATION=1.
    """
    from portakernel.integrations.ledger import Row

    return tuple(tuple(Row(**row) for row in rows) for rows in llm.collective_rpc(_rows_of_worker))


def _rows_of_worker(worker: Any) -> list[dict[str, Any]]:
    # as plain values, which is what arrives of any class
    del worker
    return [dataclasses.asdict(row) for row in report()]
