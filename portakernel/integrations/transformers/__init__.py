"""portakernel's ops inside Hugging Face transformers: ``enable``, ``disable``, ``report``.

::

    from portakernel.integrations import transformers as integration

    print(integration.enable(model))  # what is replaced, what is not, and why
    model.generate(**inputs)
    for row in integration.report():
        print(row)  # what was served, what was refused, and why
    integration.disable(model)

docs/transformers.md says what goes through which of transformers' extension points, and what is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from portakernel.integrations.transformers.requirements import TESTED
from portakernel.integrations.versions import UnsupportedVersionError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from portakernel.integrations.ledger import Row
    from portakernel.integrations.outcome import Enabled

__all__ = ["UnsupportedVersionError", "disable", "enable", "report"]


def enable(model: PreTrainedModel | None = None, ops: Iterable[str] | None = None) -> Enabled:
    """Replaces a model's attention, norms, gated MLPs and experts by portakernel's ops; what was replaced, what not.

    With ``model`` that instance alone. Without, ``sdpa`` attention in all models, and the layers of those that are made
    from now on.
    ``ops`` are portakernel's op names; None takes all that can be replaced within the scope. Calling it again changes
    nothing that is in place already. The result is a context manager that disables again::

        with integration.enable(model):
            model.generate(**inputs)

    Raises:
        UnsupportedVersionError: transformers is not installed, or not in a version that this was tested with.
        UnknownNameError: an op that has no place in transformers.
        ArgumentTypeError, ArgumentValueError: not a transformers model, or one of a model type that was not tested.
    """
    TESTED.check()
    from portakernel.integrations.transformers.switch import switch

    return switch().enable(model, ops)


def disable(model: PreTrainedModel | None = None) -> None:
    """Restores ``model``, or everything that ``enable`` changed; nothing where it changed nothing."""
    TESTED.check()
    from portakernel.integrations.transformers.switch import switch

    switch().disable(model)


def report() -> tuple[Row, ...]:
    """How many calls of transformers each op served or left to the model's own path, and why; most first.

    A compiled graph does not count its calls: what it does was decided while it was traced, and is listed as
    ``traces``. ``portakernel.stats()`` says which kernels served.
    """
    from portakernel.integrations.client import client

    return client("transformers").report()
