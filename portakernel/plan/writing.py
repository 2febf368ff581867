"""A plan as text: one line an entry, in an order that is the same everywhere, so that reviews see what changed.

What is written is what is read: text that YAML's versions could take for something else stands in quotes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from portakernel.errors import ArgumentValueError
from portakernel.host.output_file import unsuitable, write_at_once
from portakernel.manifest.yaml_file import MAX_BYTES, MAX_NODES
from portakernel.plan.plan import Entry, Plan
from portakernel.text.printable import is_unshown, one_line
from portakernel.tuning.key import canonical

SCHEMA_VERSION = 1
_HEAD = "# What kernels serve which calls. `portakernel plan check FILE` holds it against an installation."
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./+:-]*[A-Za-z0-9_]|[A-Za-z_]")
_TAKEN = frozenset({"true", "false", "null", "yes", "no", "on", "off"})
_NAMED = 5


def plan_text(plan: Plan) -> str:
    """The plan as YAML.

    Raises:
        ArgumentValueError: it is larger than what is read; names the ops that take the most of it.
    """
    lines = [_HEAD, f"schema_version: {SCHEMA_VERSION}", f"lock: {plan.lock}", f"regime: {plan.regime}"]
    lines.append("kernels:" if plan.pins else "kernels: {}")
    for name, pin in sorted(plan.pins.items()):
        pinned = {"source": pin.source} | ({"requires": dict(pin.requires)} if pin.requires else {})
        lines.append(f"  {_key(name)}: {_flow(pinned)}")
    made_with = {str(place): made for place, made in sorted(plan.made_with.items()) if made.driver or made.torch}
    lines += ["made_with:"] if made_with else []
    for text, made in made_with.items():
        known = {name: value for name in ("driver", "torch") if (value := getattr(made, name))}
        lines.append(f"  {_key(text)}: {_flow(known)}")
    lines.append("targets:" if plan.parts else "targets: {}")
    lines += _parts(plan)
    lines.append(f"digest: {plan.digest}")
    text = "\n".join(lines) + "\n"
    _refuse_large(plan, text)
    return text


def write_plan(plan: Plan, path: Path) -> None:
    """Puts the plan into the file at ``path``, at once: whoever reads it meanwhile has the old one, or this.

    A link stays, and what it names is written.

    Raises:
        ArgumentValueError: it is larger than what is read, or cannot be written there.
    """
    content, path = plan_text(plan), Path(os.path.realpath(path))
    if why := unsuitable(path):
        raise ArgumentValueError(f"{path} {why}")
    try:
        write_at_once(path, content)
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror or error}; give a file in a folder that can be"
        raise ArgumentValueError(text) from error


def _parts(plan: Plan) -> Iterator[str]:
    for place, ops in sorted(plan.parts.items()):
        listed = {op: entries for op, entries in sorted(ops.items()) if entries}
        yield f"  {_key(str(place))}:" + ("" if listed else " {}")
        for op, entries in listed.items():
            yield f"    {_key(op)}:"
            for entry in sorted(entries, key=_order):
                yield entry_line(entry)


def _order(entry: Entry) -> tuple[str, list[tuple[int, int]]]:
    """Entries of one kind stand together, from small sizes to large ones."""
    data = entry.to_data()
    kind = {name: value for name, value in data.items() if name not in entry.bounds and name != "use"}
    return canonical(kind), [entry.bounds[name] for name in sorted(entry.bounds)]


def entry_line(entry: Entry) -> str:
    """An entry as its line of the file."""
    words = []
    for name, value in entry.to_data().items():
        if name in entry.bounds:
            low, high = entry.bounds[name]
            words.append(f"{_key(name)}: {low if low == high else f'{low}..{high}'}")
        else:
            words.append(f"{_key(name)}: {_flow(value)}")
    comment = one_line(entry.comment).strip()
    return f"      - {{{', '.join(words)}}}" + (f"  # {comment}" if comment else "")


def call_text(entry: Entry) -> str:
    """An entry's kind of call and its sizes, as its line has them."""
    line = entry_line(replace(entry, kernel="", comment=""))
    return line.strip().removeprefix("- {").removesuffix(', use: ""}')


def _key(text: str) -> str:
    return text if _PLAIN_KEY.fullmatch(text) and text.lower() not in _TAKEN else _quoted(text)


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(str(name))}: {_flow(each)}' for name, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _TAKEN else _quoted(value)
    text = json.dumps(value, allow_nan=False)
    if isinstance(value, float) and "e" in text:  # YAML 1.1 wants a point, and a sign behind the e
        number, _, power = text.partition("e")
        text = f"{number if '.' in number else f'{number}.0'}e{power if power[0] in '+-' else f'+{power}'}"
    return text


def _quoted(text: str) -> str:
    if any(is_unshown(character) for character in text):
        raise ArgumentValueError(f"{one_line(text)!r} holds what a terminal does not show: a plan cannot say it")
    return json.dumps(text, ensure_ascii=False)


def _refuse_large(plan: Plan, text: str) -> None:
    size, values = len(text.encode()), 10 + sum(_values(entry.to_data()) + 2 for *_, entry in plan.entries())
    if size <= MAX_BYTES and values + 8 * len(plan.pins) <= MAX_NODES:
        return
    by_op: dict[str, tuple[int, int]] = {}
    for _, op, entry in plan.entries():
        bytes_, count = by_op.get(op, (0, 0))
        by_op[op] = bytes_ + len(entry_line(entry).encode()) + 1, count + 1
    largest = sorted(by_op.items(), key=lambda found: -found[1][0])[:_NAMED]
    named = ", ".join(f"{op} ({count} entries, {bytes_ / 1024:.0f} KiB)" for op, (bytes_, count) in largest)
    found = f"the plan has {size} bytes and {values} values; at most {MAX_BYTES} and {MAX_NODES} are read"
    raise ArgumentValueError(f"{found}. Leave out ops, or targets; the most is of {named}")


def _values(data: Any) -> int:
    """How many scalars are in it, keys included; two sizes are one."""
    if isinstance(data, Mapping):
        return sum(1 + _values(value) for value in data.values())
    if isinstance(data, (list, tuple)):
        return sum(map(_values, data))
    return 1
