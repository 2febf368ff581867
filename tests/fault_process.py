"""What the process of a fault does (tests/faults/conftest.py), known to the process that it is forked from."""

from __future__ import annotations

import gc
import importlib.util
import io
import json
import os
import signal
import sys
from collections.abc import Mapping


def run(folder: str, file: str, name: str, arguments: str, variables: Mapping[str, str]) -> None:
    """Calls ``name`` of a test module's file with these arguments; streams and what it returns go to a folder."""
    gc.freeze()  # what was imported before the fork is not looked at again
    for number, stream in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(os.path.join(folder, stream), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w", closefd=False), write_through=True) for n in (1, 2))
    for variable in [variable for variable in os.environ if variable.startswith("PORTAKERNEL_")]:
        del os.environ[variable]
    os.environ.update(variables)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    spec = importlib.util.spec_from_file_location("fault_module", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fault_module"] = module
    spec.loader.exec_module(module)
    returned = getattr(module, name)(*json.loads(arguments))
    with open(os.path.join(folder, "returned"), "w", encoding="utf-8") as file_object:
        json.dump(returned, file_object)
