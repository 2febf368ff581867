"""Why a compiler did not compile: what it wrote, as a rejection that says where and what to do."""

from __future__ import annotations

import re
from pathlib import Path

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.errors import PortakernelError
from portakernel.native.process import Ran
from portakernel.native.staging import Task

# nvcc and NVRTC write `file(12): error: …`, clang and gcc `file:12:3: error: …`
_ERROR = re.compile(
    r"^(?P<file>[^\s:()][^:()\n]*)(?:\((?P<nvidia>\d+)\)|:(?P<line>\d+)(?::\d+)?): (?:fatal |catastrophic )?error:?"
    r"(?: #\d+(?:-D)?:)? (?P<text>.+)$",
    re.MULTILINE,
)
_MISSING_HEADER = re.compile(
    r"cannot open source file \"(?P<a>[^\"]+)\"|'(?P<b>[^']+)' file not found"
    r"|fatal error: (?P<c>\S+): No such file or directory|could not open source file \"(?P<d>[^\"]+)\""
)
_UNKNOWN_ARCH = re.compile(
    r"[Uu]nsupported (HIP )?gpu architecture|is not defined for option 'gpu-architecture'|unknown target CPU"
    r"|invalid value for --gpu-architecture|[Ii]nvalid target ID|Unsupported \.target"
)
_NO_MEMORY = re.compile(
    r"out of memory|bad_alloc|[Cc]annot allocate memory|virtual memory exhausted|failed to map segment|MemoryError"
)
# What stands behind the source, ours (symbols.instances) and NVRTC's: the names that were asked for.
_NAMES = ("names", "__nv_name_map")
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_CRASH = re.compile(
    r"died due to signal (\d+)|PLEASE (?:ATTACH|submit a bug report)|Assertion .* failed|Segmentation fault"
)
_INCOMPLETE = re.compile(
    r"[Ff]ailed to preprocess host compiler|[Cc]annot find compiler|gcc: not found|unsupported GNU version"
    r"|unable to execute command|invalid linker name|failed to open libnvrtc-builtins"
)


class CompilerOutputError(PortakernelError):
    """All that a compiler wrote; the cause of the rejection that sums it up."""


def failure(ran: Ran, task: Task, compiler: str) -> CannotRun:
    """The outcome of a run that made nothing."""
    told = task.put_back(ran.told)
    error = CannotRun(_rejection(ran, told, task, compiler))
    error.__cause__ = CompilerOutputError(told.strip() or f"{compiler} wrote nothing")
    return error


def _rejection(ran: Ran, told: str, task: Task, compiler: str) -> Rejection:
    what = f"{task.source.path} for {task.target}"
    limits = task.options.limits
    if ran.timed_out:
        text = f"{compiler} did not compile {what} in {limits.seconds:g} s and was ended; allow it more time"
        return Rejection(ReasonCode.CANNOT_RUN, f"{text} (Options.limits), or another compiler")
    if _NO_ROOM.search(told):
        text = f"{compiler} had no room on the disk to compile {what}; make room, or set TMPDIR to a folder with some"
        return Rejection(ReasonCode.CANNOT_RUN, text)
    if _NO_MEMORY.search(told) or ran.signal == "SIGKILL":
        text = f"{compiler} ran out of memory on {what}, of which it may use {limits.memory_bytes / 2**30:.3g} GiB"
        return Rejection(ReasonCode.CANNOT_RUN, f"{text}; allow it more (Options.limits), or build fewer at a time")
    if _UNKNOWN_ARCH.search(told):
        arch = f"{task.target.arch}{task.options.arch_suffix}"
        return Rejection(ReasonCode.ARCH, f"{compiler} does not know {arch}; install a newer one", "target")
    if found := _MISSING_HEADER.search(told):
        return _missing_header(next(filter(None, found.groups())), told, task)
    if found := _INCOMPLETE.search(told):
        line = next(line for line in told.splitlines() if found[0] in line)
        text = f"{compiler} cannot work: {line.strip()}; install what it lacks (a host compiler, a linker)"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, text)
    if ran.signal or _CRASH.search(told):
        how = f" ({ran.signal})" if ran.signal else ""
        return Rejection(ReasonCode.CANNOT_RUN, f"{compiler} crashed on {what}{how}; use another version of it")
    errors = [found for found in _ERROR.finditer(told) if found["text"] != "#error"]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        text = f"{_place(errors[0])}: {errors[0]['text'].strip()}{more}"
        return Rejection(ReasonCode.CANNOT_RUN, f"{compiler} cannot compile {what}: {text}")
    last = next((line.strip() for line in reversed(told.splitlines()) if line.strip()), "it wrote nothing")
    return Rejection(ReasonCode.CANNOT_RUN, f"{compiler} ended with status {ran.status} on {what}: {last}")


def _missing_header(header: str, told: str, task: Task) -> Rejection:
    line = next((found for found in _ERROR.finditer(told) if header in found["text"]), None)
    where = f"{_place(line)} includes" if line else f"{task.source.path} includes"
    remedy = "list it among the source's headers, or name the package that has it (Options.packages)"
    if (task.source.folder / header).is_file():
        remedy = "it is there: list it among the source's headers"
    elif Path(header).name.startswith(("cuda", "hip", "cub", "thrust")):
        remedy = "install the vendor's headers (CUDA toolkit or nvidia-cuda-runtime; ROCm, or triton, which has HIP's)"
    text = f"{where} {header}, which is not found; {remedy}"
    return Rejection(ReasonCode.MISSING_LIBRARY, text, header)


def _place(error: re.Match[str]) -> str:
    if error["file"] in _NAMES:
        return "the names that are wanted of it"
    return f"{error['file']}:{error['nvidia'] or error['line']}"
