"""Recording builds what the calls of a function need, when they come, and nothing else."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
import yaml

from portakernel.errors import FallbackWarning
from portakernel.warming.building import Progress
from portakernel.warming.recording import Recording

SOURCE = '''
import torch

BUILT = []
REFUSED = []

def build(request, tensors, values):
    """Notes what it was asked for; the tensors are real, and detached."""
    assert all(tensor is None or (tensor.data_ptr() and not tensor.requires_grad) for tensor in tensors)
    if request.dims["M"] in REFUSED:
        from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, "too odd"))
    BUILT.append((request.op, str(request.phase), request.dims["M"]))

def build_loser(request, tensors, values):
    BUILT.append("loser")

def add(x, y, *, out=None):
    return torch.add(x, y) if out is None else torch.add(x, y, out=out)

def rms_norm(x, weight, *, eps, weight_offset=0.0, out=None, save=False):
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    y = x * rstd * weight
    if out is not None:
        return out.copy_(y)
    return (y, rstd.reshape(-1)) if save else y

def backward(grad_y, x, weight, rstd, *, eps, needs):
    rstd = rstd.reshape(*x.shape[:-1], 1)
    gw, u = grad_y * weight, x * rstd
    grad_x = rstd * (gw - u * (gw * u).mean(-1, keepdim=True))
    return grad_x if needs[0] else None, (grad_y * u).reshape(-1, x.shape[-1]).sum(0) if needs[1] else None
'''
MODULE = "portakernel_test_builders"


def entry(op: str, name: str, function: str, **more: object) -> dict[str, object]:
    dtypes = {"x": ["float32"], "y" if op == "add" else "weight": ["x"]}
    made = {"op": op, "name": name, "entry": f"{MODULE}:{function}", "dtypes": dtypes, "targets": {"cpu": "any"}}
    return made | more


@pytest.fixture
def ops(make_ops, tmp_path, monkeypatch):
    folder = tmp_path / MODULE
    folder.mkdir()
    kernels = [
        entry("add", "winner", "add", build=f"{MODULE}:build", priority=95),
        entry("add", "loser", "add", build=f"{MODULE}:build_loser", priority=1),
        entry("rms_norm", "norm", "rms_norm", backward=f"{MODULE}:backward", build=f"{MODULE}:build", priority=95),
    ]
    manifest = {"schema_version": 1, "plugin": MODULE, "kernels": kernels}
    (folder / "plugin.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    (folder / "__init__.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield make_ops("torch", modules=(MODULE,))
    sys.modules.pop(MODULE, None)


@pytest.fixture
def builders(ops):
    ops.dispatcher.entry(f"{MODULE}:add")
    return sys.modules[MODULE]


@pytest.fixture
def progress() -> Progress:
    return Progress(lambda text: None)


def recording(ops, progress: Progress) -> Recording:
    return Recording([ops.caller("add"), ops.caller("rms_norm")], progress)


def test_each_kind_of_call_is_built_once_just_before_it_runs(ops, builders, progress):
    x, wide = torch.randn(3), torch.randn(2, 5)
    assert ops.served("add") == {}
    with recording(ops, progress):
        ops.add(x, x)
        ops.add(x, x)
        assert torch.equal(ops.add(wide, wide), 2 * wide)
    assert builders.BUILT == [("add", "inference", 3), ("add", "inference", 10)]
    assert ops.served("add") == {f"{MODULE}.winner": 3}
    assert list(progress.built) == [f"{MODULE}.winner"]


def test_training_is_built_with_its_backward(ops, builders, progress):
    x, weight = torch.randn(4, 8, requires_grad=True), torch.ones(8)
    with recording(ops, progress):
        ops.rms_norm(x, weight).square().sum().backward()
    assert builders.BUILT == [("rms_norm", "training", 4), ("rms_norm", "backward", 4)]
    assert ops.served("rms_norm") == {f"{MODULE}.norm": 2}


def test_a_call_under_vmap_is_built_as_a_kernel_sees_it(ops, builders, progress):
    x, y = torch.randn(7, 2), torch.randn(7, 2)
    with recording(ops, progress):
        torch.vmap(ops.add)(x, y)
    assert builders.BUILT == [("add", "inference", 14)]


def test_what_cannot_be_built_is_told_with_its_reason_and_another_serves(ops, builders, progress):
    builders.REFUSED.append(3)
    x = torch.randn(3)
    with recording(ops, progress), pytest.warns(FallbackWarning, match="winner cannot serve .cannot_run: too odd."):
        assert torch.equal(ops.add(x, x), 2 * x)
    assert (progress.built, progress.declined) == ({}, {f"{MODULE}.winner": "too odd"})
    assert ops.served("add") == {"torch.add": 1}


def test_outside_of_a_recording_nothing_is_built(ops, builders, progress):
    x = torch.randn(3)
    with recording(ops, progress):
        pass
    ops.add(x, x)
    assert builders.BUILT == []
    assert ops.served("add") == {"torch.add": 1}
