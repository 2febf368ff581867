"""Loading a manifest: the file read, held against its model, and every problem told with its place."""

from __future__ import annotations

import functools
import types
import typing
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from portakernel.errors import ManifestError, ManifestWarning, PluginApiError, nearest
from portakernel.host.call_site import callers_level
from portakernel.host.foreign import Raised, call_bounded
from portakernel.manifest.api_version import fits, misfit
from portakernel.manifest.mending import inside, mended, without
from portakernel.manifest.models import SCHEMA_VERSION
from portakernel.manifest.yaml_file import Document, KeyPath, read_yaml
from portakernel.text.printable import logger, one_line

M = TypeVar("M", bound=BaseModel)
_PYDANTIC_S = 3.0
_log = logger()


@dataclass(frozen=True, slots=True)
class Loaded(Generic[M]):
    """A manifest, and its file for errors that are found later."""

    manifest: M
    document: Document
    # places that are known to be wrong, and were taken out (``load_what_is_known``)
    taken_out: frozenset[KeyPath] = frozenset()

    def problem(self, path: KeyPath, text: str) -> str:
        """``text`` with file, line and key path before it; empty where it but follows from what was taken out."""
        if any(place[: len(path)] == path or path[: len(place)] == place for place in self.taken_out):
            return ""
        return problem(self.document, path, text)


def problem(document: Document, path: KeyPath, text: str) -> str:
    """``text`` with file, line and key path before it; what was never a file has no lines."""
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    where = f"{document.path}:{document.line(path)}" if document.lines is not None else document.path
    return one_line(f"{where}: {dotted + ': ' if dotted else ''}{text}")


def load_manifest(model: type[M], path: Path, *, strict: bool, shown_as: str | None = None) -> Loaded[M]:
    """The manifest in ``path``.

    An unknown key is an error, unless not ``strict`` and the file's ``schema_version`` is newer than ours: then it is
    warned about and left out.

    Raises:
        PluginApiError: it is written for another plugin API; unless ``strict`` nothing else in it is judged then.
        ManifestError: the file cannot be accepted; holds every problem found.
    """
    _settle_pydantic()
    document = read_yaml(path, shown_as=shown_as)
    if not isinstance(document.data, dict):
        text = f"holds {shown(document.data)}, not a mapping of keys"
        if document.data is None:
            text = f"holds no keys; the first is `{_first_key(model)}`"
        raise ManifestError(document.path, [problem(document, (), text)])
    keys = list(_keys_that_are_no_text(document.data))
    data, found, refused = without(document.data, keys), list[str](), ManifestError
    for key in keys:
        line = f"{document.path}:{document.line(tuple(map(str, key)))}"
        found.append(f"{line}: the key {key[-1]!r} is not text for YAML; quote it")
    api = data.get("plugin_api")
    if isinstance(api, int) and not isinstance(api, bool) and api >= 1 and not fits(api):
        found.append(problem(document, ("plugin_api",), misfit(api)))
        refused = PluginApiError
    version = data.get("schema_version")
    newer = isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION
    if newer and strict:
        text = f"is {version}; this portakernel knows versions up to {SCHEMA_VERSION}"
        found.append(problem(document, ("schema_version",), text))
    if found and not strict:
        raise refused(document.path, found)
    try:
        loaded = Loaded(model.model_validate(data), document)
    except ValidationError as error:
        unknown = _unknown_keys(data, error)
        if strict or not newer or not unknown:
            raise refused(document.path, [*found, *describe_errors(model, document, error)]) from error
    else:
        if found:
            raise refused(document.path, found)
        return loaded
    for key in unknown:
        text = f"schema_version {version} is newer than {SCHEMA_VERSION}; the unknown key is ignored"
        warnings.warn(problem(document, key, text), ManifestWarning, stacklevel=callers_level())
    try:
        return Loaded(model.model_validate(without(data, unknown)), document)
    except ValidationError as error:
        raise ManifestError(document.path, describe_errors(model, document, error)) from error


def _first_key(model: type[BaseModel]) -> str:
    """How a file of this model begins: with the version of its form, where it has one."""
    if "schema_version" in model.model_fields:
        return f"schema_version: {SCHEMA_VERSION}"
    return f"{next(name for name, field in model.model_fields.items() if field.is_required())}:"


@functools.cache
def _settle_pydantic() -> None:
    """Lets pydantic look for its own plugins, in every distribution's entry points, before a model of ours is built.

    One that is damaged makes it fail, once: after that it goes on without plugins. One that is a pipe it waits for.
    """
    outcome = call_bounded("pydantic's search for its plugins", lambda: TypeAdapter(int), _PYDANTIC_S)
    if isinstance(outcome, Raised):
        _log.debug("pydantic's search for its plugins %s", outcome)


def load_what_is_known(model: type[M], path: Path, *, shown_as: str | None = None) -> Loaded[M] | None:
    """The manifest without what is wrong with its form, for finding what else is wrong; None where nothing is left.

    Of the places that were taken out, and what is around them, it has nothing to say.
    """
    _settle_pydantic()
    document = read_yaml(path, shown_as=shown_as)
    made = mended(model, without(document.data, list(_keys_that_are_no_text(document.data))))
    return None if made is None else Loaded(made[0], document, made[1])


def _unknown_keys(data: Any, error: ValidationError) -> list[KeyPath]:
    return [inside(data, found["loc"]) for found in error.errors() if found["type"] == "extra_forbidden"]


def describe_errors(model: Any, document: Document, error: ValidationError) -> list[str]:
    """One sentence for each key at fault: place, what was found, what is accepted."""
    problems: dict[KeyPath, list[str]] = {}
    for found in error.errors():
        path = inside(document.data, found["loc"])
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


def shown(value: Any) -> str:
    """``value`` as a message quotes it, of bounded length."""
    text = repr(value) if not isinstance(value, Mapping) else f"a mapping of {', '.join(map(str, value)) or 'nothing'}"
    return text if len(text) <= 60 else f"{text[:57]}..."
