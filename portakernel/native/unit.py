"""One thing to compile: a source, what is wanted of it, and how; and what came of it, from the cache or a compiler."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.native.code_cache import cache
from portakernel.native.code_object import CodeObject, Form, KernelFacts
from portakernel.native.compiler import Compiler, Made
from portakernel.native.diagnosis import failure
from portakernel.native.elf import NotReadableError
from portakernel.native.facts import named, read_code
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.staging import staged
from portakernel.native.toolchain import compiler_for
from portakernel.words.target import Target


@dataclass(frozen=True, slots=True)
class Unit:
    """A source, the kernels that are wanted of it, and its options, which may depend on the target.

    ``names``: of a code object, ``extern "C"`` kernels or instances of templates (``rms_norm<float, 8>``); of a
    library, the ``extern "C"`` host functions that it exports.
    """

    source: Source
    names: tuple[str, ...]
    options: Options | Callable[[Target], Options] = field(default=Options())
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
        """What the cache has of it, whichever compiler made it; compiles nothing."""
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
    files = source.read()
    digest = _digest(source, files, target, options, names, form)
    compiler, kept_here = compiler_for(target, options, form), cache()
    if isinstance(compiler, Rejection):
        if (found := kept_here.alike(digest)) is not None:
            return found
        raise CannotRun(compiler)
    key = _key(digest, compiler)
    if (found := kept_here.find(key)) is not None:
        return found
    # whoever waits for another process's build waits no longer than its own could take
    with kept_here.locked(key, options.limits.seconds):
        found = kept_here.find(key)
        return found if found is not None else _compiled(key, compiler, source, files, target, options, names, form)


def kept(
    source: Source,
    target: Target,
    options: Options = Options(),  # noqa: B008 - frozen
    names: tuple[str, ...] = (),
    *,
    form: Form = "code object",
) -> CodeObject | None:
    """What the cache has of it, whichever compiler made it, the one that is here before others; None where nothing.

    Raises:
        CannotRun: the source or its headers are not there.
    """
    digest = _digest(source, source.read(), target, options, names, form)
    compiler, kept_here = compiler_for(target, options, form), cache()
    if isinstance(compiler, Compiler) and (found := kept_here.find(_key(digest, compiler))) is not None:
        return found
    return kept_here.alike(digest)


def label(source: Source, options: Options) -> str:
    """A source in words, which is compiled several times: ``norms.hip T=float V=4``."""
    return " ".join([source.file, *(f"{name}={value}" for name, value in options.defines)])


def needs_build(unit: Unit, target: Target) -> Rejection:
    """Why a unit that calls do not compile cannot serve yet, and the command that builds it."""
    plugin = next((name for folder in unit.source.path.parents if (name := _plugin(folder))), "PLUGIN")
    text = f"{unit} is not built for {target}; `portakernel build {plugin} --target {target}` builds it"
    return Rejection(ReasonCode.NEEDS_BUILD, text)


def _plugin(folder: Path) -> str:
    """The plugin whose folder it is; empty where it is none's."""
    try:
        found = re.search(r"^plugin:\s*(\w+)", (folder / "plugin.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return ""
    return found[1] if found else ""


def _compiled(
    key: str,
    compiler: Compiler,
    source: Source,
    files: Mapping[str, bytes],
    target: Target,
    options: Options,
    names: tuple[str, ...],
    form: Form,
) -> CodeObject:
    """The code object that ``compiler`` makes, kept in the cache."""
    instantiate = form == "code object" and compiler.name in ("nvcc", "clang")
    with staged(source, files, target, options, names, form, instantiate=instantiate) as task:
        ran = compiler.run(task)
        made = compiler.collect(task, ran)
        if made is None:
            raise failure(ran, task, str(compiler))
        kernels = _kernels(made, compiler, source, target, names, form)
    code = CodeObject(
        key, form, target, compiler.identity, kernels, None, made.code, made.log, made.seconds, made.assembly
    )
    return cache().store(code, label(source, options))


def _kernels(
    made: Made, compiler: Compiler, source: Source, target: Target, names: tuple[str, ...], form: Form
) -> tuple[KernelFacts, ...]:
    """What is known of the kernels in what was made, once it is what was asked for; of a library, of all in it.

    Raises:
        CannotRun: it is no machine code, or for another architecture, or lacks a kernel.
    """
    kernels: dict[str, KernelFacts] = {}
    for code in made.device_code:
        try:
            found_target, found = read_code(code)
        except NotReadableError as error:
            text = f"what {compiler} made of {source.path} {error}; use another version of it"
            raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, text)) from error
        if found_target != target:
            text = f"{compiler} made code for {found_target} when asked for {target}; use another version of it"
            raise CannotRun(Rejection(ReasonCode.ARCH, text, "target"))
        kernels |= found
    try:
        return named(kernels, names if form == "code object" else (), made.lowered)
    except KeyError as error:
        text = f"{source.path} has no kernel {error.args[0]!r} for {target}; it has {', '.join(kernels) or 'none'}"
        remedy = 'declare it extern "C" __global__, or name an instance of a template as C++ does'
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, f"{text}; {remedy}")) from error


def _digest(
    source: Source, files: Mapping[str, bytes], target: Target, options: Options, names: tuple[str, ...], form: Form
) -> str:
    """The digest of all that is compiled, whoever compiles it."""
    told = {
        "language": source.language,
        "file": source.file,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "target": str(target),
        "arch_suffix": options.arch_suffix,
        "defines": [[name, str(value)] for name, value in options.defines],
        "flags": options.flags,
        "include": options.include,
        "packages": [[package.name, package.version] for package in options.packages],
        "standard": options.standard,
        "compilers": options.compilers,
        "names": names,
        "form": form,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:40]


def _key(digest: str, compiler: Compiler) -> str:
    return f"{digest}-{hashlib.sha256(compiler.identity.encode()).hexdigest()[:12]}"
