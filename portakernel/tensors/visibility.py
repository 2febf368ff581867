"""Visibility masks: the devices that a vendor's runtime will enumerate, and in what order.

Each function takes the text of an environment variable (None when it is not set) and the UUIDs of the devices that it
chooses from, and returns their indices in the order of the mask. The three runtimes read one syntax in three ways: what
they do with duplicates, spaces and an empty text differs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LEADING_INTEGER = re.compile(r"\s*([+-]?\d+)")
_CUDA_UUID = re.compile(r"(?:GPU|MIG)-(.+)", re.DOTALL)
_UUID_DIGITS = 32
# What C's strtol takes with base 0: hexadecimal and octal too.
_C_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)")
# ROCr compares at most "GPU-" and 16 hexadecimal digits.
_ROCR_UUID_LENGTH = 20


def visible_to_cuda(mask: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """What ``CUDA_VISIBLE_DEVICES`` leaves visible: the devices before the first invalid entry; none after a duplicate.

    The first entry decides whether the mask lists numbers or UUIDs, of which the first digits are enough when only one
    device has them. Spaces may precede a number, and what follows it is ignored, so that ``1gpu`` is 1; the empty text
    hides everything. Case, dashes and whether ``GPU-`` or ``MIG-`` is in front do not matter to a UUID.

    Source: CUDA Programming Guide 13, "CUDA Environment Variables"; torch.cuda's ``_parse_visible_devices``; what both
    leave open as ``cuInit`` and ``cuDeviceGetUuid_v2`` answered on two H200 (driver 580.159.04, 2026-11-20).
    """
    if mask is None:
        return tuple(range(len(uuids)))
    lists_uuids = mask.startswith(("GPU-", "MIG-"))
    digits = [_cuda_digits(uuid) for uuid in uuids]
    visible: list[int] = []
    for entry in mask.split(","):
        if lists_uuids:
            index = uuids.index(entry) if entry in uuids else _only_match(_cuda_digits(entry), digits)
        else:
            number = _LEADING_INTEGER.match(entry)
            index = int(number[1]) if number else -1
        if not 0 <= index < len(uuids):
            break
        if index in visible:
            return ()
        visible.append(index)
    return tuple(visible)


def visible_to_rocr(mask: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """What ``ROCR_VISIBLE_DEVICES`` leaves visible: the devices before the first invalid or repeated entry.

    Numbers and UUIDs (case does not matter, a unique prefix is enough) mix; the empty text hides everything.

    Source: ROCR-Runtime, core/runtime/amd_filter_device.cpp, class RvdFilter.
    """
    if mask is None:
        return tuple(range(len(uuids)))
    known = [uuid.upper() for uuid in uuids]
    visible: list[int] = []
    for entry in (text.strip().upper() for text in mask.split(",")):
        if entry.startswith("G"):
            index = _only_match(entry, known) if len("GPU-") < len(entry) <= _ROCR_UUID_LENGTH else -1
        else:
            index = _c_integer(entry)
        if not 0 <= index < len(uuids) or index in visible:
            break
        visible.append(index)
    return tuple(visible)


def visible_to_hip(mask: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """What ``HIP_VISIBLE_DEVICES`` leaves visible: those before the first invalid entry; repeated ones count once.

    Spaces make an entry invalid, a UUID may be any part of one, and the empty text means the same as no mask.

    Source: ROCm/clr, rocclr/device/rocm/rocdevice.cpp, ``Device::init``.
    """
    if not mask:
        return tuple(range(len(uuids)))
    visible: dict[int, None] = {}
    for entry in mask.split(","):
        if "GPU-" in entry:
            index = next((at for at, uuid in enumerate(uuids) if entry in uuid), -1)
        else:
            index = int(entry) if re.fullmatch(r"0|[1-9]\d*", entry) else -1
        if not 0 <= index < len(uuids):
            break
        visible[index] = None
    return tuple(visible)


def _cuda_digits(entry: str) -> str:
    """The hexadecimal digits of a UUID as CUDA reads them, which is as far as it needs; empty when it cannot."""
    body = _CUDA_UUID.fullmatch(entry)
    digits = body[1].replace("-", "").lower()[:_UUID_DIGITS] if body else ""
    return digits if re.fullmatch("[0-9a-f]*", digits) else ""


def _only_match(prefix: str, uuids: Sequence[str]) -> int:
    """The index of the one UUID that starts with ``prefix``; -1 when none or several do, or the prefix is empty."""
    matches = [at for at, uuid in enumerate(uuids) if prefix and uuid.startswith(prefix)]
    return matches[0] if len(matches) == 1 else -1


def _c_integer(text: str) -> int:
    """``text`` as C's ``strtol`` with base 0 reads it whole; -1 when it does not."""
    if not _C_INTEGER.fullmatch(text):
        return -1
    digits = text.lstrip("+-").lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") and digits != "0" else 10
    try:
        value = int(digits, base)
    except ValueError:  # a decimal digit in an octal number
        return -1
    return -value if text.startswith("-") else value
