"""The parts of a key, in order: the one place that says so, for code that makes keys and for code that writes it.

``(signature, *parts, policy)`` for a plain forward: the form's dtypes and devices, what ``expressions.Expressions``
lists, the policy in force. Any other kind of call has its ``CallKind`` behind that, field by field. ``caller`` adds
what is rarer: what kernels of attached devices read, that a stream is captured, a size that the key's kernel declined.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from portakernel.claims.request import Phase


class CallKind(NamedTuple):
    """The kind of a call: all that the choice depends on beside arguments and policy.

    ``inplace``: the result goes over an argument. ``saved_by``: of a backward, the kernel that ran forward, where it
    saves in a way of its own. ``below_autograd``: of a training forward, that autograd has had its turn. ``unpaired``:
    of one, that backward's kernel is chosen apart.
    """

    phase: Phase = Phase.INFERENCE
    inplace: bool = False
    saved_by: str | None = None
    below_autograd: bool = False
    unpaired: bool = False


PLAIN = CallKind()
INPLACE = CallKind(inplace=True)
TRAINING = CallKind(Phase.TRAINING)


class Source(str):
    """A field of a kind that is not known yet: the source text that works it out."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# How source text names a phase. What source text names itself begins with an underscore, as no argument of an op does.
PHASES: dict[str, Any] = {f"_{phase.name}": phase for phase in Phase}


def key_of(signature: object, parts: tuple[Any, ...], policy: object, kind: CallKind) -> tuple[Any, ...]:
    """The key of a call."""
    key = (signature, *parts, policy)
    return key if kind == PLAIN else (*key, *kind)


def key_source(parts: str, kind: CallKind) -> str:
    """The same tuple as source text that knows ``_form`` and ``_policy``; ``parts`` are text, each with a comma."""
    beyond = "".join(f", {'_' + value.name if isinstance(value, Phase) else repr(value)}" for value in kind)
    return f"(_form.signature, {parts}_policy{beyond if kind != PLAIN else ''})"
