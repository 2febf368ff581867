"""Every error portakernel raises, in one tree.

A message says what was asked, what was found, what is accepted, and what to do next; the same facts are
fields of the exception, so that a program can act on them without reading text.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from portakernel.text.printable import one_line, printable

if TYPE_CHECKING:
    from portakernel.deciding.decision import Decision
    from portakernel.warming.outcome import Warmup


def close_to(name: str, known: Iterable[str], *, like: Callable[[str], str] = str) -> list[str]:
    """The known names that ``name`` is perhaps a misspelling of, the closest first, compared by their ``like``."""
    by_likeness = {like(one): one for one in sorted(set(known), reverse=True)}
    close = difflib.get_close_matches(like(name), sorted(by_likeness), n=3, cutoff=0.6)
    return [by_likeness[match] for match in close]


def nearest(name: str, known: Iterable[str], *, like: Callable[[str], str] = str) -> str:
    """A clause that offers the known names closest to ``name``, and all of them when they are few.

    What is rejected is never offered: a name that is known elsewhere, and not accepted here.
    """
    names = sorted(one for one in set(known) if like(one) != like(name))
    if close := close_to(name, names, like=like):
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    if not names:
        return "none is known"
    if len(names) <= 14:
        return f"known: {', '.join(names)}"
    return f"{len(names)} are known, none of them close"


class PortakernelError(Exception):
    """The root of all errors that portakernel raises on purpose. They survive pickling, fields included.

    The message is printable, whatever the names, files and texts in it hold.
    """

    def __str__(self) -> str:
        return printable(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception's own way calls the class with the message alone, which these do not all take.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[PortakernelError], arguments: tuple[Any, ...], fields: dict[str, Any]) -> PortakernelError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(fields)
    return error


class UnknownNameError(PortakernelError, ValueError, AttributeError):
    """A name (op, kernel, plugin, vendor, arch, dtype, ...) that nothing defines; offers the nearest."""

    # ``name`` would collide with AttributeError's own field, which the interpreter uses for suggestions.
    def __init__(
        self,
        kind: str,
        unknown: str,
        known: Iterable[str],
        *,
        where: str = "",
        hint: str = "",
        meant: str | None = None,
        instead: str = "",
    ) -> None:
        self.kind = kind
        self.unknown = unknown
        self.known = tuple(sorted(set(known)))
        prefix = f"{where}: " if where else ""
        offer = instead or (f"did you mean {meant!r}?" if meant is not None else nearest(unknown, self.known))
        message = f"{prefix}unknown {kind} {unknown!r}; {offer}"
        stop = "" if message.endswith("?") else "."
        super().__init__(f"{message}{stop} {hint}" if hint else message)


class ArgumentValueError(PortakernelError, ValueError):
    """A call's arguments have values (shapes, devices, sizes) that the op's contract does not allow."""


class IndexOutOfRangeError(ArgumentValueError, IndexError):
    """A tensor of indices (classes, rows, positions) holds one that there is not; said on the CPU alone."""


class ArgumentTypeError(PortakernelError, TypeError):
    """A call's arguments have types or dtypes that the op's contract does not allow."""


class ManifestError(PortakernelError, ValueError):
    """A manifest that cannot be accepted: where, what was found, what is accepted."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.path = path
        self.problems = tuple(one_line(problem) for problem in problems if problem)  # an empty one follows from another
        super().__init__("\n".join(self.problems))


class PluginApiError(ManifestError):
    """A manifest of a package that is written for a plugin API which this portakernel does not run."""


class PluginError(PortakernelError):
    """A plugin or backend that cannot be used; blames its name, distribution and version."""

    def __init__(
        self, message: str, *, plugin: str, distribution: str | None = None, version: str | None = None
    ) -> None:
        self.plugin = plugin
        self.distribution = distribution
        self.version = version
        super().__init__(message)


class ConfigError(PortakernelError, ValueError):
    """A ``PORTAKERNEL_*`` variable or a policy with a value that is not accepted."""


class PolicyFileError(ConfigError):
    """A policy file that cannot be accepted: where, what was found, what is accepted, and who named the file."""

    def __init__(self, path: str, problems: Sequence[str], *, named_by: str = "") -> None:
        self.path = path
        self.problems = tuple(one_line(problem) for problem in problems if problem)  # an empty one follows from another
        self.named_by = named_by
        head = f"{named_by}: this policy file cannot be accepted:\n" if named_by else ""
        super().__init__(head + "\n".join(self.problems))


class PlanError(ConfigError):
    """A plan that is refused, whole: every place where its form, its names or its kernels' sources are not as asked."""

    def __init__(self, path: str, problems: Sequence[str], *, named_by: str = "") -> None:
        self.path = path
        self.problems = tuple(one_line(problem) for problem in problems if problem)  # an empty one follows from another
        self.named_by = named_by
        head = f"{named_by}: this plan is refused, and nothing of it is followed:\n" if named_by else ""
        super().__init__(head + "\n".join(self.problems))


class RankDisagreement(PortakernelError, RuntimeError):  # noqa: N818 - a state of several ranks, as they report it
    """Ranks that would not run the same kernels.

    ``differences`` has ranks with a kernel each, and the digests of its source there and on the first rank, empty where
    it is not installed; ``others`` ranks that had nothing to compare, and why.
    """

    def __init__(
        self, differences: Sequence[tuple[int, str, str, str]], others: Sequence[tuple[int, str]] = ()
    ) -> None:
        self.differences = tuple(differences)
        self.others = tuple(others)
        lines = list[str]()
        for rank, kernel, there, first in self.differences:
            here = f"the source {there}" if there else "no source, it is not installed"
            lines.append(f"rank {rank}: {kernel} has {here}; on rank 0 it has {first or 'none'}")
        lines += [f"rank {rank}: {text}" for rank, text in self.others]
        advice = "Nothing was agreed on, on any rank: install the same packages on all of them"
        super().__init__("the ranks do not agree:\n" + "\n".join(f"  {line}" for line in lines) + f"\n{advice}")


class RankLostError(PortakernelError, TimeoutError):
    """A rank that did not come to an agreement before the group's timeout; ``waited_for`` says for what."""

    def __init__(self, waited_for: str, ranks: int, reason: str) -> None:
        self.waited_for = waited_for
        text = f"agree: {waited_for} of {ranks} ranks did not all come: {one_line(reason)}"
        super().__init__(f"{text}. Each rank of the group calls portakernel.agree, once; see which one has ended")


class NoKernelError(PortakernelError, NotImplementedError):
    """No kernel can serve a request; carries the whole decision."""

    def __init__(self, message: str, decision: Decision) -> None:
        self.decision = decision
        super().__init__(message)


class CaptureError(PortakernelError, RuntimeError):
    """While a stream is captured, something would have to be probed, loaded or compiled; ``what`` says what."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what}, but a stream is being captured: until that ends nothing is probed, loaded or compiled."
            " Before the capture run portakernel.warmup(function, *args) with the function that is captured, or"
            " portakernel.warmup(op, *tensors) for a single call"
        )


class NotReturnedError(PortakernelError, TimeoutError):
    """A plugin's import, hook or probe that was waited for in vain; it rests in this process."""

    def __init__(self, waited_s: float) -> None:
        self.waited_s = waited_s
        super().__init__(f"did not return within {waited_s:g} s, and rests in this process")


class DriverError(PortakernelError, RuntimeError):
    """A vendor's driver that hangs, aborts, or gives no answer when it is asked for its devices."""


class CalledBackError(PortakernelError, RuntimeError):
    """Code of a plugin asked for what portakernel was waiting for it to say."""


class WarmupError(PortakernelError, RuntimeError):
    """Some calls could not be made ahead; the others were, and ``warmup`` says what came of all."""

    def __init__(self, warmup: Warmup) -> None:
        self.warmup = warmup
        count = len(warmup.failed)
        calls = "1 call" if count == 1 else f"{count} calls"
        reasons = "\n".join(f"  {failure}" for failure in warmup.failures())
        super().__init__(f"{calls} could not be warmed up, and would fail when made:\n{reasons}")


class DerivativeError(PortakernelError, NotImplementedError):
    """A derivative that the op does not define (a second backward, say)."""


class TransformError(PortakernelError, NotImplementedError):
    """A transform of ``torch.func`` that the op does not have (``vmap`` of one that writes into its arguments)."""


class CompiledGraphError(PortakernelError, RuntimeError):
    """A kernel cannot stand in a compiled graph in the form that was chosen for it."""


class MissingPackageError(PortakernelError, ImportError):
    """What was asked for needs a package that is not installed, and that an extra of portakernel brings."""


class PortakernelWarning(UserWarning):
    """The root of all warnings that portakernel gives; each is one printable line."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class LayoutWarning(PortakernelWarning):
    """Tensors look as if their dimensions stood in another order than the op documents. Given once per op."""


class ReferenceWarning(PortakernelWarning):
    """The reference serves a call on an accelerator, where a faster kernel was to be expected."""


class FallbackWarning(PortakernelWarning):
    """A kernel that would have been chosen cannot run; another serves. Given once per (op, kernel, reason)."""


class StaleGraphWarning(PortakernelWarning):
    """A graph runs that was traced under another policy or plan, or in another installation.

    Given once per op and policy.
    """


class PackagedCallWarning(PortakernelWarning):
    """A package of AOTInductor calls an op, and so loads only where portakernel was imported. Given for each kernel."""


class RedistributionWarning(PortakernelWarning):
    """A DTensor is placed so that each call moves its shards between ranks. Given once per op and placement."""


class ClientWarning(PortakernelWarning):
    """An engine's layer that is enabled is not served: no call reached it, or its numbers were worse than the engine's.

    Given once per layer and reason.
    """


class ShadowWarning(PortakernelWarning):
    """Shadow verification found a wrong result, or could not look. Given once per kernel and kind of call."""


class ConfigWarning(PortakernelWarning):
    """A ``PORTAKERNEL_*`` variable is set that does not exist."""


class ManifestWarning(PortakernelWarning):
    """A manifest of a newer schema version has keys that this version does not know; they are ignored."""
