"""A dispatcher of each test's own, over the installed packages and one that is made for it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.plugin_manager import Package, PluginManager, installed_packages
from portakernel.registry.registry import Registry

MANIFEST = """
schema_version: 1
plugin: acme
summary: Kernels of a test.
requires: {modules: {torch: ">=2.0"}}
defaults:
  targets: {cpu: any}
kernels:
"""
KERNEL = """\
  - op: rms_norm
    name: %(name)s
    entry: acme_for_bench_tests:%(name)s
    dtypes: {x: [float32, bfloat16], weight: [float32, bfloat16]}
"""
SOURCE = """
import torch

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection

def right(x, weight, *, eps, out=None):
    y = torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
    return y if out is None else out.copy_(y)

def wrong(x, weight, *, eps, out=None):
    y = right(x, weight, eps=eps)
    y[1] = 0
    return y

def broken(x, weight, *, eps, out=None):
    raise RuntimeError("no such luck\\nand more")

made = set()

def build_for_rows(request, tensors, values):
    made.add(len(tensors[0]))

def for_rows(x, weight, *, eps, out=None):
    if len(x) not in made:
        raise CannotRun(Rejection(ReasonCode.NEEDS_BUILD, "is not built for so many rows", "M"))
    return right(x, weight, eps=eps)

later = []

def sometimes(x, weight, *, eps, out=None):
    later.append(1)
    if len(later) > 3:
        raise ValueError("enough")
    return right(x, weight, eps=eps)
"""


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Dispatcher]:
    """Makes a plugin with some of SOURCE's functions as kernels of rms_norm; a dispatcher that knows it."""

    def make(*names: str) -> Dispatcher:
        folder = tmp_path / "acme_for_bench_tests"
        folder.mkdir()
        (folder / "__init__.py").write_text(SOURCE, encoding="utf-8")
        built = "    build: acme_for_bench_tests:build_for_rows\n"
        kernels = [KERNEL % {"name": name} + built * (name == "for_rows") for name in names]
        manifest = MANIFEST + "".join(kernels)
        (folder / "plugin.yaml").write_text(manifest, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, folder.name, raising=False)
        package = Package("acme", folder.name, "acme-kernels", "1.2", folder)
        return Dispatcher(Registry(PluginManager((*installed_packages(), package))))

    return make


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def benchmark_script() -> Callable[[str], AbstractContextManager[ModuleType]]:
    """What makes a module of a script in benchmarks/, for as long as its context lasts."""

    @contextmanager
    def load(name: str) -> Iterator[ModuleType]:
        if not BENCHMARKS.is_dir():
            pytest.skip("an installed copy has no benchmarks")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(BENCHMARKS)
            spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
            module = importlib.util.module_from_spec(spec)
            patch.setitem(sys.modules, name, module)  # where dataclasses look up their annotations
            spec.loader.exec_module(module)
            yield module

    return load
