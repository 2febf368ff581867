"""One thing to compile: a source, what is wanted of it, and how; and what came of it, from the cache or a compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from portakernel.native.code_object import CodeObject, Form
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.target import Target


@dataclass(frozen=True, slots=True)
class Unit:
    """A source, the kernels that are wanted of it, and its options, which may depend on the target.

    ``names``: of a code object, ``extern "C"`` kernels or instances of templates (``rms_norm<float, 8>``); of a
    library, the ``extern "C"`` host functions that it exports.
    """

    source: Source
    names: tuple[str, ...]
    options: Options | Callable[[Target], Options] = Options()
    form: Form = "code object"

    def __str__(self) -> str:
        return f"{self.source.file} ({', '.join(self.names)})"

    def for_target(self, target: Target) -> Options:
        """The options for ``target``."""
        return self.options(target) if callable(self.options) else self.options

    def build(self, target: Target) -> CodeObject:
        """Compiled for ``target``: from the cache, or by a compiler.

        Raises:
            CannotRun: it cannot be compiled here, with the reason and what to do.
        """
        return build(self.source, target, self.for_target(target), self.names, form=self.form)

    def kept(self, target: Target) -> CodeObject | None:
        """What the cache has of it; compiles nothing."""
        return kept(self.source, target, self.for_target(target), self.names, form=self.form)


def build(
    source: Source,
    target: Target,
    options: Options = Options(),  # noqa: B008 - frozen
    names: tuple[str, ...] = (),
    *,
    form: Form = "code object",
) -> CodeObject:
    """``source`` compiled for ``target``, be that in this machine or not: from the cache, or by a compiler.

    The compiler runs in processes of its own, within ``options.limits``. Processes that want the same thing wait for
    one of them to build it.

    Raises:
        CannotRun: no compiler can do it here, or ours cannot compile the source; with the reason and what to do.
    """
    raise NotImplementedError


def kept(
    source: Source,
    target: Target,
    options: Options = Options(),  # noqa: B008 - frozen
    names: tuple[str, ...] = (),
    *,
    form: Form = "code object",
) -> CodeObject | None:
    """What the cache has of it, whichever compiler of those that would do made it; None where it has nothing whole.

    Raises:
        CannotRun: the source or its headers are not there.
    """
    raise NotImplementedError
