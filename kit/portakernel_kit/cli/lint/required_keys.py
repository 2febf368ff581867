"""The keys that a manifest must have, each taken away in a copy of the file that ``validate`` then reads."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from portakernel.contract import Contract
from portakernel.contracts import contracts
from portakernel.manifest.mending import without
from portakernel.manifest.yaml_file import KeyPath, read_yaml
from portakernel.registry.kernel import Kernel
from portakernel.registry.plugin_manager import Package
from portakernel.words.arch import ArchSpace
from portakernel_kit.cli.validate.problems import Problem
from portakernel_kit.cli.validate.validation import Subject, backend_problems, plugin_problems
from portakernel_kit.conformance.mutation.mutation import Judged, Mutation

Kind = Literal["plugin", "backend"]
# What of a claim every kernel needs, from whichever layer it comes.
_NEEDED = ("targets", "dtypes", "formats")


class RequiredKeys:
    """The required keys of one manifest, which is left as it is."""

    def __init__(self, package: Package, kind: Kind, file: Path, spaces: Mapping[str, ArchSpace]) -> None:
        self.package, self.spaces = package, spaces
        self.kind: Kind = kind
        self.subject = f"{package.name}: {file.name}"
        self.data: dict[str, Any] = read_yaml(file).data
        self.schema: dict[str, Any] = json.loads(
            (files("portakernel.schema") / f"{kind}.schema.json").read_text("utf-8")
        )

    def paths(self) -> list[KeyPath]:
        """Where they stand: those that the schema requires, and those that ops, claims and other keys do."""
        found = [*self._of_schema(self.data, self.schema, ())]
        found += self._of_archs() if self.kind == "backend" else self._of_kernels()
        return list(dict.fromkeys(found))

    def paths_of(self, kernels: Sequence[Kernel]) -> list[KeyPath]:
        """Those of these kernels' entries, and those of the file that are no kernel's."""
        entries = self.data.get("kernels") or []
        names = {kernel.name.partition(".")[2] for kernel in kernels if kernel.plugin == self.package.name}
        kept = {i for i, entry in enumerate(entries) if entry.get("name", entry.get("op")) in names}
        return [path for path in self.paths() if path[0] != "kernels" or len(path) == 1 or path[1] in kept]

    def mutation(self, path: KeyPath) -> Mutation:
        """The removal of one."""
        dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        return Mutation("required", self.subject, dotted, str(path[-1]))

    def judge(self, path: KeyPath) -> Judged:
        """Whether ``validate`` says which key is missing, and where."""
        mutation, key = self.mutation(path), str(path[-1])
        whole, path = self._alone(path)
        before = {(problem.key, problem.text) for problem in self._problems(whole)}
        lacking = self._problems(without(whole, [path]))
        after = [problem for problem in lacking if (problem.key, problem.text) not in before]
        if not after:
            return Judged(mutation, "unnoticed", detail="validate finds nothing wrong")
        told = next((problem for problem in after if problem.line is not None and _names(problem, key)), None)
        if told is None:
            return Judged(mutation, "unnoticed", detail=f"validate names neither key nor line: {after[0].text}")
        return Judged(mutation, "noticed", "validate", f"at line {told.line} of the copy: {told.text}")

    def _problems(self, data: object) -> list[Problem]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "copy.yaml")
            file.write_text(yaml.dump(data, Dumper=_Plain, sort_keys=False, allow_unicode=True), encoding="utf-8")
            subject = Subject(file, self.kind, self.package, True)
            if self.kind == "backend":
                return backend_problems(subject, {}, {})
            return plugin_problems(subject, self.spaces)

    def _alone(self, path: KeyPath) -> tuple[dict[str, Any], KeyPath]:
        """The manifest with no other kernel than the one that ``path`` leads to, which makes it quick to read."""
        if path[0] != "kernels" or len(path) == 1:
            return self.data, path
        return {**self.data, "kernels": [self.data["kernels"][path[1]]]}, ("kernels", 0, *path[2:])

    # --- which are required ----------------------------------------------------------------------------------------

    def _of_schema(self, data: Any, schema: Mapping[str, Any], path: KeyPath) -> Iterator[KeyPath]:
        schema = self._resolved(data, schema)
        if isinstance(data, list):
            for i, item in enumerate(data):
                yield from self._of_schema(item, schema.get("items", {}), (*path, i))
        if isinstance(data, dict):
            yield from ((*path, key) for key in schema.get("required", ()) if key in data)
            others: Any = schema.get("additionalProperties") or next(
                iter(schema.get("patternProperties", {}).values()), {}
            )
            for key, value in data.items():
                deeper = schema.get("properties", {}).get(key, others)
                yield from self._of_schema(value, deeper if isinstance(deeper, dict) else {}, (*path, key))

    def _resolved(self, data: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of the schema that is about data of this kind."""
        kind = "object" if isinstance(data, dict) else "array" if isinstance(data, list) else None
        if "$ref" in schema:
            return self._resolved(data, self.schema["$defs"][schema["$ref"].rpartition("/")[2]])
        branches = (self._resolved(data, branch) for branch in schema.get("anyOf", ()))
        return next((branch for branch in branches if branch.get("type") == kind), schema)

    def _of_archs(self) -> Iterator[KeyPath]:
        """The facts of each arch that a line or a family names."""
        named = (*self.data.get("lines", ()), *self.data.get("families", {}).values())
        yield from (("archs", arch) for archs in named for arch in archs)

    def _of_kernels(self) -> Iterator[KeyPath]:
        """What each kernel's op and its other keys require."""
        for i, entry in enumerate(self.data.get("kernels") or ()):
            here: KeyPath = ("kernels", i)
            op = contracts().get(entry.get("op"))
            if op is not None:
                layers = [(("defaults",), self.data.get("defaults") or {}), (here, entry)]
                for j, variant in enumerate(entry.get("variants") or [None]):
                    inner = [((*here, "variants", j), variant)] if variant is not None else []
                    yield from _needed(op, [*layers, *inner])
            if entry.get("saves") == "own":
                yield (*here, "backward")
            if "built" in entry:
                yield (*here, "build")


def _needed(op: Contract, layers: list[tuple[KeyPath, Mapping[str, Any]]]) -> Iterator[KeyPath]:
    """Keys of which no other layer has one, and the arguments that the last layer to have them lists."""
    features = next((layer["features"] for _, layer in reversed(layers) if layer.get("features") is not None), ())
    unlisted = {feature.name for feature in op.features if feature.name not in features}
    arguments = {"dtypes": [name for name in op.typed if name not in unlisted], "formats": list(op.formats)}
    for key in _NEEDED:
        places = [path for path, layer in layers if layer.get(key) is not None]
        if not places or (key in arguments and not arguments[key]):
            continue
        # a key of `defaults` is of many kernels: it is taken away where it is one kernel's
        if len(places) == 1 and places[0] != ("defaults",):
            yield (*places[0], key)
        if places[-1] != ("defaults",):
            yield from ((*places[-1], key, name) for name in arguments.get(key, ()))


def _names(problem: Problem, key: str) -> bool:
    """Whether the problem is about this key: it ends its path, or its text begins with it."""
    about = f"{problem.key or ''} {problem.text.partition(':')[0]}"
    return re.search(rf"\b{re.escape(key)}\b", about) is not None


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        """Nothing is an alias."""
        return True
