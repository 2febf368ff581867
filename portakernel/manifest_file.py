"""Loading a manifest: the file read, held against its model, and every problem told with its place."""

from __future__ import annotations

import types
import typing
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from portakernel.errors import ManifestError, ManifestWarning, PluginApiError, nearest
from portakernel.manifest import SCHEMA_VERSION
from portakernel.plugin_api import fits, misfit
from portakernel.yaml_file import Document, KeyPath, read_yaml

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[M]):
    """A manifest, and its file for errors that are found later."""

    manifest: M
    document: Document

    def problem(self, path: KeyPath, text: str) -> str:
        """``text`` with file, line and key path before it."""
        return problem(self.document, path, text)


def problem(document: Document, path: KeyPath, text: str) -> str:
    """``text`` with file, line and key path before it; what was never a file has no lines."""
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    where = f"{document.path}:{document.line(path)}" if document.lines is not None else document.path
    return f"{where}: {dotted + ': ' if dotted else ''}{text}"


def load_manifest(model: type[M], path: Path, *, strict: bool, shown_as: str | None = None) -> Loaded[M]:
    """The manifest in ``path``.

    An unknown key is an error, unless not ``strict`` and the file's ``schema_version`` is newer than ours: then it is
    warned about and left out.

    Raises:
        PluginApiError: it is written for another plugin API, so that nothing else in it can be judged.
        ManifestError: the file cannot be accepted; holds every problem found.
    """
    document = read_yaml(path, shown_as=shown_as)
    if not isinstance(document.data, dict):
        raise ManifestError(
            document.path, [problem(document, (), f"holds {shown(document.data)}, not a mapping of keys")]
        )
    data = document.data
    for key in _keys_that_are_no_text(data):
        text = f"the key {key[-1]!r} is not text for YAML; quote it"
        raise ManifestError(document.path, [f"{document.path}:{document.line(tuple(map(str, key)))}: {text}"])
    api = data.get("plugin_api")
    if isinstance(api, int) and not isinstance(api, bool) and api >= 1 and not fits(api):
        raise PluginApiError(document.path, [problem(document, ("plugin_api",), misfit(api))])
    version = data.get("schema_version")
    newer = isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION
    if newer and strict:
        text = f"is {version}; this portakernel knows versions up to {SCHEMA_VERSION}"
        raise ManifestError(document.path, [problem(document, ("schema_version",), text)])
    try:
        return Loaded(model.model_validate(data), document)
    except ValidationError as error:
        unknown = _unknown_keys(data, error)
        if not newer or not unknown:
            raise ManifestError(document.path, describe_errors(model, document, error)) from error
    for key in unknown:
        text = f"schema_version {version} is newer than {SCHEMA_VERSION}; the unknown key is ignored"
        warnings.warn(problem(document, key, text), ManifestWarning, stacklevel=2)
    try:
        return Loaded(model.model_validate(_without(data, unknown)), document)
    except ValidationError as error:
        raise ManifestError(document.path, describe_errors(model, document, error)) from error


def load_what_is_known(model: type[M], path: Path, *, shown_as: str | None = None) -> Loaded[M] | None:
    """The manifest without its unknown keys, for finding what else is wrong; None where more is wrong with its form."""
    document = read_yaml(path, shown_as=shown_as)
    try:
        model.model_validate(document.data)
    except ValidationError as error:
        try:
            known = _without(document.data, _unknown_keys(document.data, error))
            return Loaded(model.model_validate(known), document)
        except ValidationError:
            return None
    return None


def _unknown_keys(data: Any, error: ValidationError) -> list[KeyPath]:
    return [_inside(data, found["loc"]) for found in error.errors() if found["type"] == "extra_forbidden"]


def describe_errors(model: Any, document: Document, error: ValidationError) -> list[str]:
    """One sentence for each key at fault: place, what was found, what is accepted."""
    problems: dict[KeyPath, list[str]] = {}
    for found in error.errors():
        path = _inside(document.data, found["loc"])
        if found["type"] == "extra_forbidden":
            text = f"unknown key; {nearest(str(path[-1]), _keys_at(model, found['loc'][:-1]))}"
        elif found["type"] == "missing":
            text = f"required key {found['loc'][-1]!r} is missing"
        elif found["type"] in ("dict_type", "model_type"):
            text = f"found {shown(found['input'])}; input should be a mapping of keys"
        else:
            text = found["msg"].removeprefix("Value error, ")
            if found["type"] != "value_error":
                text = f"found {shown(found['input'])}; {text[0].lower()}{text[1:]}"
        problems.setdefault(path, []).append(text)
    return [problem(document, path, "; or ".join(dict.fromkeys(texts))) for path, texts in problems.items()]


def _keys_that_are_no_text(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of keys such as ``no`` or ``1``, which YAML reads as something else than text."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in pairs:
        if isinstance(data, dict) and not isinstance(key, str):
            yield (*path, key)
        yield from _keys_that_are_no_text(value, (*path, key))


def _inside(data: Any, location: tuple[str | int, ...]) -> KeyPath:
    """``location`` without what pydantic adds to it (the branch of a union), as a path into ``data``."""
    path: list[str | int] = []
    for part in location:
        here: Any = dict(enumerate(data)) if isinstance(data, list) else data
        if isinstance(here, dict) and part in here:
            data = here[part]
            path.append(part)
    return tuple(path)


def _keys_at(annotation: Any, location: tuple[str | int, ...]) -> list[str]:
    """The keys that the model at ``location`` accepts."""
    while location:
        origin = typing.get_origin(annotation)
        arguments = [argument for argument in typing.get_args(annotation) if argument is not types.NoneType]
        if origin is Annotated:
            annotation = arguments[0]
        elif origin in (list, dict):
            annotation, location = arguments[-1], location[1:]
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
            if location[0] not in fields:
                break
            annotation, location = fields[str(location[0])].annotation, location[1:]
        else:
            branches = [argument for argument in arguments if getattr(argument, "__name__", "") == location[0]]
            models = [
                argument for argument in arguments if typing.get_origin(argument) is not None or _is_model(argument)
            ]
            annotation, location = (branches or models or [None])[0], location[1:] if branches else location
    for argument in (annotation, *typing.get_args(annotation)):
        if _is_model(argument):
            return [field.alias or name for name, field in argument.model_fields.items()]
    return []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _without(data: Any, paths: list[KeyPath]) -> Any:
    """A copy of ``data`` without the keys at ``paths``."""
    here = {path[0] for path in paths if len(path) == 1}
    deeper = [path for path in paths if len(path) > 1]
    if isinstance(data, dict):
        return {
            key: _without(value, [path[1:] for path in deeper if path[0] == key])
            for key, value in data.items()
            if key not in here
        }
    if isinstance(data, list):
        return [_without(value, [path[1:] for path in deeper if path[0] == i]) for i, value in enumerate(data)]
    return data


def shown(value: Any) -> str:
    """``value`` as a message quotes it, of bounded length."""
    text = repr(value) if not isinstance(value, Mapping) else f"a mapping of {', '.join(map(str, value)) or 'nothing'}"
    return text if len(text) <= 60 else f"{text[:57]}..."
