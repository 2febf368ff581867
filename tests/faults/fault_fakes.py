"""Fake distributions for faults: written into the fault's own folder and put on ``sys.path``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HOOK = "from portakernel.hookspecs import hookimpl\n\n@hookimpl\ndef {}:\n    {}\n"
KERNEL = """\
  - {op: add, name: %s, entry: "%s:run", targets: {cpu: any}, priority: %d,
     dtypes: {x: [float32], y: [x]}}
"""


def write(name, *, hooks=(), kernel=None, priority=1000, top="", source="", manifest="", backend="", module=None):
    """Installs a distribution with a plugin of one name; ``source`` is its module's, ``kernel`` its kernel's name."""
    site = Path("site").absolute()
    folder = site / f"fake_{name}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(source, encoding="utf-8")
    if not backend:
        text = f"schema_version: 1\nplugin: {name}\n{top}"
        text += f"hooks: [{', '.join(hooks)}]\n" if hooks else ""
        text += "kernels:\n" + KERNEL % (kernel, f"fake_{name}", priority) if kernel else ""
        (folder / "plugin.yaml").write_text(manifest or text, encoding="utf-8")
    else:
        (folder / "backend.yaml").write_text(backend, encoding="utf-8")
    info(f"{name}_dist-1.0.dist-info", f"{name} = {module or f'fake_{name}'}")
    return folder


def info(folder, entry_point="", metadata=None, **files):
    """A distribution's metadata; files may be bytes, text, or absent (None)."""
    site = Path("site").absolute()
    path = site / folder
    path.mkdir(parents=True, exist_ok=True)
    name, _, version = folder.removesuffix(".dist-info").partition("-")
    if metadata is None:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content = {"METADATA": metadata, **files}
    if entry_point:
        content["entry_points.txt"] = f"[portakernel]\n{entry_point}\n"
    for file, text in content.items():
        (path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    if str(site) not in sys.path:
        sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    return path


def call():
    """What ``ops.add`` gives on the CPU for what must give [3, 3, 3]."""
    import torch

    from portakernel import ops

    return ops.add(torch.ones(3), torch.full((3,), 2.0)).tolist()


def faults():
    """Each broken package's name, stage and reason."""
    from portakernel.runtime import dispatcher

    return [[fault.package.name, fault.stage, fault.reason] for fault in dispatcher().registry.manager.broken]
