r"""portakernel's attention inside diffusers: ``enable``, ``disable``, ``report``.

::

    from portakernel.integrations import diffusers as integration

    print(integration.enable(pipe.transformer))  # what is replaced, what is not, and why
    pipe(prompt)
    print(*integration.report(), sep="\n")  # what was served, what was left, and why
    integration.disable()

``enable()`` without a model makes the name known alone, for diffusers' own ``set_attention_backend("portakernel")``.
docs/clients.md says what is served and what is refused.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import TYPE_CHECKING

from portakernel.integrations.diffusers.requirements import TESTED
from portakernel.integrations.versions import UnsupportedVersionError

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin

    from portakernel.integrations.ledger import Row
    from portakernel.integrations.outcome import Enabled

__all__ = ["UnsupportedVersionError", "disable", "enable", "report"]


def enable(model: ModelMixin | None = None) -> Enabled:
    """Makes the attention backend ``portakernel`` known to diffusers, and sets ``model`` to it; what was replaced.

    Without a model nothing computes by it until ``set_attention_backend("portakernel")``, ``attention_backend`` or
    DIFFUSERS_ATTN_BACKEND says so; call it before diffusers' models are imported where the variable does. With a model,
    that is diffusers' own call, which also makes the backend the active one of the whole process; processors that ask
    for no backend (``AttnProcessor2_0``, of UNets) are replaced by one that does. The result is a context manager that
    disables again. Calling it again changes nothing that is in place.

    Raises:
        UnsupportedVersionError: diffusers is not installed, or not in the version that this was tested with.
        ArgumentTypeError: not a model of diffusers.
    """
    TESTED.check()
    _importable()
    from portakernel.integrations.diffusers.switch import switch

    return switch().enable(model)


def disable(model: ModelMixin | None = None) -> None:
    """Restores ``model``, or everything: the process-wide backend too, and the name is unknown again."""
    TESTED.check()
    _importable()
    from portakernel.integrations.diffusers.switch import switch

    switch().disable(model)


def report() -> tuple[Row, ...]:
    """How many attention calls the op served, or left to diffusers' native backend and why; and who was bypassed.

    A compiled graph does not count its calls: what it does was decided while it was traced, and is listed as
    ``traces``. ``portakernel.stats()`` says which kernels served.
    """
    TESTED.check()
    _importable()
    from portakernel.integrations.diffusers.switch import switch

    return switch().report()


def _importable() -> None:
    """Imports diffusers' dispatch first: where DIFFUSERS_ATTN_BACKEND names our backend, it fails on its own."""
    from portakernel.integrations.diffusers.backend import dispatch

    dispatch()
