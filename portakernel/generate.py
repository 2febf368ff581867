"""Writes the files that are made from code: the JSON Schemas of the manifests, and ``ops.pyi`` from the contracts.

``python -m portakernel.generate`` writes them; with ``--check`` it names the stale ones and exits 1.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

from pydantic import BaseModel

from portakernel.contract import Contract
from portakernel.contracts import contracts
from portakernel.manifest import BackendManifest, PluginManifest

_HERE = Path(__file__).parent


def generated() -> dict[Path, str]:
    """What each generated file should hold."""
    schemas: dict[str, type[BaseModel]] = {"plugin": PluginManifest, "backend": BackendManifest}
    files = {
        _HERE / "schema" / f"{name}.schema.json": json.dumps(model.model_json_schema(), indent=1) + "\n"
        for name, model in schemas.items()
    }
    files[_HERE / "ops.pyi"] = _stub()
    return files


def _stub() -> str:
    head = '"""The public ops. Generated from the contracts by `make generate`."""\n\nfrom torch import Tensor\n'
    return "\n".join([head, *(_signature(contract) for contract in contracts().values())])


def _signature(contract: Contract) -> str:
    arguments = [*(f"{tensor.name}: Tensor" for tensor in contract.tensors), "*"]
    arguments += [f"{parameter.name}: float = {parameter.default!r}" for parameter in contract.parameters]
    arguments += ["out: Tensor | None = None", "kernel: str | None = None"]
    body = "".join(f"    {argument},\n" for argument in arguments)
    docstring = textwrap.indent(f'"""{contract.document()}\n"""', "    ")
    return f"def {contract.op}(\n{body}) -> Tensor:\n{docstring}\n"


def main() -> int:
    """Writes or checks the files; the process's exit status."""
    stale = [path for path, text in generated().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.name} is stale: run `make generate`", file=sys.stderr)  # noqa: T201 - what the command says
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(generated()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
