"""A file's data with what is wrong with its form taken out, so that what else is wrong can be found in one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from portakernel.manifest.yaml_file import KeyPath

M = TypeVar("M", bound=BaseModel)

# What stands for a required key that is missing or wrong: accepted by form, and its own faults are not told.
_STAND_INS: dict[str, Any] = {
    "schema_version": 1,
    "plugin": "unnamed",
    "backend": "unnamed",
    "vendor": "unnamed",
    "torch_device": "cpu",
    "op": "unnamed",
    "entry": "unnamed:unnamed",
    "context": "unnamed:unnamed",
    "name": "unnamed",
    "source": "unnamed",
    "reads": ["unnamed"],
    "in": "any",
    "priority": 0,
}
# Keys that contradict each other: without them the rest of a mapping can be judged.
_CONTRADICTING = ("saves", "built", "distributions")
_ROUNDS = 8


def mended(model: type[M], data: Any) -> tuple[M, frozenset[KeyPath]] | None:
    """The model of ``data`` as far as it goes, and the places that were taken out; None where nothing can be made."""
    out: dict[KeyPath, None] = {}
    for _ in range(_ROUNDS):
        try:
            return model.model_validate(data), frozenset(out)
        except ValidationError as error:
            faults = error.errors()
            known = dict.fromkeys(inside(data, fault["loc"]) for fault in faults)
            lacking = [fault["loc"] for fault in faults if fault["type"] == "missing"]
            missing = {(*inside(data, place), str(place[-1])) for place in lacking}
            paths = [*missing, *(path for path in known if not any(other[:-1] == path for other in missing))]
            if not any(paths):
                return None
            # the deepest first: what is around it may be right without it
            for path in sorted(paths, key=len, reverse=True):
                data, taken = _without_fault(data, path)
                out.update(dict.fromkeys(taken))
    return None


def inside(data: Any, location: tuple[str | int, ...]) -> KeyPath:
    """``location`` without what pydantic adds to it (the branch of a union), as a path into ``data``."""
    path: list[str | int] = []
    for part in location:
        here: Any = dict(enumerate(data)) if isinstance(data, list) else data
        if isinstance(here, dict) and part in here:
            data = here[part]
            path.append(part)
    return tuple(path)


def _without_fault(data: Any, path: KeyPath) -> tuple[Any, list[KeyPath]]:
    """``data`` without the fault at ``path``, and the places that were taken out for it."""
    found = _at(data, path)
    if isinstance(found, dict) and (several := [key for key in _CONTRADICTING if key in found]):
        left = {key: each for key, each in found.items() if key not in several}
        return _replaced(data, path, left), [(*path, key) for key in several]
    if path and path[-1] in _STAND_INS and path[-1] not in ("name", "priority"):
        return _replaced(data, path, _STAND_INS[str(path[-1])]), [path]
    if not path or not isinstance(path[-1], int):
        return without(data, [path]) if path else {}, [path]
    # an entry of a list: its neighbours keep their places
    if path[-2:-1] in (("kernels",), ("variants",)) and found != {}:
        return _replaced(data, path, {}), [path]
    return _without_fault(data, path[:-1])


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _replaced(data: Any, path: KeyPath, value: Any) -> Any:
    """A copy of ``data`` with ``value`` at ``path``."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(data, list):
        return [_replaced(each, rest, value) if i == part else each for i, each in enumerate(data)]
    return {**data, part: _replaced(data.get(part, {}), rest, value)} if isinstance(data, dict) else data


def without(data: Any, paths: Sequence[tuple[Any, ...]]) -> Any:
    """A copy of ``data`` without the keys at ``paths``."""
    here = {path[0] for path in paths if len(path) == 1}
    deeper = [path for path in paths if len(path) > 1]
    if isinstance(data, dict):
        return {
            key: without(value, [path[1:] for path in deeper if path[0] == key])
            for key, value in data.items()
            if key not in here
        }
    if isinstance(data, list):
        return [without(value, [path[1:] for path in deeper if path[0] == i]) for i, value in enumerate(data)]
    return data
