"""Writes the files that are made from code and manifests.

These are the JSON Schemas of YAML files, ``ops.pyi`` from the contracts, ``docs/matrix.md`` with its picture
``docs/matrix.svg``, ``docs/sharding.md``, the figures of ``docs/conformance.md`` and ``docs/emulation.md`` and
the numbers of ops and kernels in ``README.md``.

``python -m portakernel_pages.generate`` writes them; with ``--check`` it names the stale ones and exits 1.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

from pydantic import BaseModel

from portakernel.contract import Contract
from portakernel.contract.parameter import Parameter
from portakernel.contract.signature_text import arguments as signature_arguments
from portakernel.contract.signature_text import document, outs
from portakernel.contracts import own_contracts
from portakernel.deciding.policy_document import PolicyDocument
from portakernel.manifest.models import BackendManifest, PluginManifest
from portakernel.matrix import proofs
from portakernel.matrix.page.levels import levels
from portakernel.matrix.table import markdown, support_matrix
from portakernel.registry.plugin_manager import PluginManager, installed_packages
from portakernel.registry.registry import Registry
from portakernel_pages import emulated, matrix_picture, tolerances
from portakernel_pages.faults import recorded, with_figures
from portakernel_pages.sharding_page import sharding_page

_ROOT = Path(__file__).parents[2]
_CORE = _ROOT / "portakernel"
_DOCS = _ROOT / "docs"
_README = _ROOT / "README.md"


def generated() -> dict[Path, str]:
    """What each generated file should hold."""
    schemas: dict[str, type[BaseModel]] = {
        "plugin": PluginManifest,
        "backend": BackendManifest,
        "policy": PolicyDocument,
    }
    files = {
        _CORE / "schema" / f"{name}.schema.json": json.dumps(model.model_json_schema(), indent=1) + "\n"
        for name, model in schemas.items()
    }
    files[_CORE / "ops.pyi"] = _stub()
    matrix = support_matrix(first_party())
    files[_DOCS / "matrix.md"] = matrix_picture.with_picture(markdown(matrix), "matrix.svg")
    files[_DOCS / "matrix.svg"] = matrix_picture.svg(levels(matrix, proofs.recorded()))
    files[_DOCS / "sharding.md"] = sharding_page()
    files[_DOCS / "tolerances.md"] = tolerances.page(tolerances.recorded())
    figures = _DOCS / "conformance.md"
    files[figures] = with_figures(figures.read_text(encoding="utf-8"), recorded())
    emulation = _DOCS / "emulation.md"
    files[emulation] = emulated.with_tables(emulation.read_text(encoding="utf-8"), emulated.recorded())
    files[_README] = _counted(_README.read_text(encoding="utf-8"), first_party())
    return files


def first_party() -> Registry:
    """What ships with portakernel, whatever else is installed."""
    return Registry(PluginManager([package for package in installed_packages() if package.first_party]))


def _counted(readme: str, registry: Registry) -> str:
    """The README with the numbers that it names as they are.

    Raises:
        ValueError: it no longer names one of them as it did.
    """
    ops = {name: len({k.op for k in registry.kernels.values() if k.plugin == name}) for name in registry.plugins()}
    kernels = sum(kernel.plugin == "torch" for kernel in registry.kernels.values())
    numbers = {
        "The {} ops carry": len(own_contracts()),
        "`triton` ({} ops, gradients": ops["triton"],
        "`torch` ({} kernels of": kernels,
        " kernels of {} ops, most": ops["torch"],
        "`hip` ({} ops in HIP C++": ops["hip"],
    }
    for phrase, number in numbers.items():
        before, after = map(re.escape, phrase.split("{}"))
        readme, times = re.subn(f"(?<={before})\\d+(?={after})", str(number), readme)
        if times != 1:
            raise ValueError(f"README.md has {phrase!r} {times} times; once is needed, for the number to be kept true")
    return readme


# What editors and type checkers see: a call with tensors first, as most are, then the same one with arrays.
_STUB_HEAD = '''"""The public ops. Generated from the contracts by `make generate`."""

from typing import Any, Literal, Protocol, TypeVar, overload

from torch import Tensor, dtype

class Array(Protocol):
    """An array of NumPy, JAX or CuPy (docs/arrays.md): all of a call are of one of them, and so are its results.

    A type checker gives a result the first argument's type, of which the dtype may be another.
    """

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

_Array = TypeVar("_Array", bound=Array)
'''


def _stub() -> str:
    return "".join([_STUB_HEAD, "\n", *(_signatures(contract) for contract in own_contracts().values())])


def _signatures(contract: Contract) -> str:
    docstring = textwrap.indent(f'"""{document(contract)}\n"""', "    ")
    of_tensors = _signature(contract, "Tensor", "kernel=None")
    of_arrays = _signature(contract, "_Array" if contract.outputs else "Array", "kernel=None", "copy=None")
    return f"@overload\n{of_tensors}\n{docstring}\n\n@overload\n{of_arrays} ...\n"


def _signature(contract: Contract, kind: str, *more: str) -> str:
    """The head of a function that takes tensors, or arrays, of a ``kind``; other arrays may be of other dtypes."""
    first, others = contract.names[0], kind.removeprefix("_")
    typed = {tensor.name: f"{others} | None" if tensor.optional else others for tensor in contract.tensors}
    typed[first] = kind
    typed |= {parameter.name: _type(parameter) for parameter in contract.parameters}
    several = len(contract.outputs) > 1
    written = (
        f"tuple[{kind}, ...]"
        if all(output.when is None for output in contract.outputs)
        else f"{kind} | tuple[{kind}, ...]"
    )
    result = written if several else kind if contract.outputs else "None"
    typed |= {"out": f"{result.replace(kind, others)} | None", "kernel": "str | None", "copy": "Literal[False] | None"}
    arguments = []
    for text in signature_arguments(contract, *outs(contract), *more):
        name, equals, default = text.replace("'", '"').partition("=")
        arguments.append(text if name == "*" else f"{name}: {typed[name]}" + (f" = {default}" if equals else ""))
    body = "".join(f"    {argument},\n" for argument in arguments)
    return f"def {contract.op}(\n{body}) -> {result}:"


def _type(parameter: Parameter) -> str:
    kinds = {
        "float": "float",
        "int": "int",
        "bool": "bool",
        "mask": "str",
        "dtype": "str | dtype",
        "window": "tuple[int | None, int | None]",
    }
    words = ", ".join(f'"{choice}"' for choice in parameter.choices)
    kind = kinds.get(parameter.kind) or f"Literal[{words}]"
    return f"{kind} | None" if parameter.optional else kind


def main() -> int:
    """Writes or checks the files; the process's exit status."""
    stale = [
        path for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.name} is stale: run `make generate`", file=sys.stderr)  # noqa: T201 - what the command says
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(generated()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
