"""Cross-entropy of PyTorch's operators, in blocks of rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import portakernel
from portakernel import ops
from portakernel_plugins.torch import cross_entropy

VALUES = {"ignore_index": -100, "label_smoothing": 0.0, "overwrite_logits": False, "return_lse": False}


def draw(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 50, generator=generator).to(dtype)
    target = torch.randint(50, (3, 7), generator=generator)
    target[1, 2] = -100
    return logits, target


@pytest.mark.parametrize("elements", [1, 100, 149, 10_000])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.25])
def test_blocks_of_any_size_give_the_same_results(elements, label_smoothing, monkeypatch):
    logits, target = draw()
    values = {**VALUES, "label_smoothing": label_smoothing, "return_lse": True}
    grad = torch.randn(3, 7)

    def everything() -> list[torch.Tensor]:
        *results, lse = cross_entropy.cross_entropy(logits, target, **values, save=True)
        return [*results, lse, cross_entropy.backward(grad, logits, target, lse, **values, needs=(True, False))[0]]

    whole = everything()
    monkeypatch.setattr(cross_entropy, "_BLOCK_ELEMENTS", elements)
    for found, want in zip(everything(), whole, strict=True):
        torch.testing.assert_close(found, want)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_training_gives_the_gradient_that_torch_s_own_function_gives(label_smoothing):
    logits, target = draw()
    leaves = [logits.clone().requires_grad_() for _ in range(2)]
    ours = ops.cross_entropy(leaves[0], target, label_smoothing=label_smoothing, kernel="torch.cross_entropy")
    theirs = F.cross_entropy(
        leaves[1].reshape(-1, 50), target.reshape(-1), label_smoothing=label_smoothing, reduction="none"
    )
    torch.testing.assert_close(ours.reshape(-1), theirs)
    for loss, leaf in ((ours, leaves[0]), (theirs, leaves[1])):
        (loss.sum() * 0.5).backward()
        assert leaf.grad is not None
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_an_ignored_row_of_nan_has_no_loss_and_no_gradient(dtype, label_smoothing):
    logits, target = draw(dtype)
    logits[1, 2] = torch.nan
    leaf = logits.requires_grad_()
    loss = ops.cross_entropy(leaf, target, label_smoothing=label_smoothing, kernel="torch.cross_entropy")
    loss.sum().backward()
    assert loss[1, 2] == 0
    assert leaf.grad is not None
    assert leaf.grad[1, 2].tolist() == [0.0] * 50
    assert bool(leaf.grad.isfinite().all())


def test_targets_of_32_bits_are_classes_too():
    logits, target = draw()
    wanted = cross_entropy.cross_entropy(logits, target, **VALUES)
    assert torch.equal(cross_entropy.cross_entropy(logits, target.int(), **VALUES), wanted)


def test_apple_is_left_to_the_reference():
    decision = portakernel.explain("cross_entropy", target="apple:m3", dtype="float32")
    assert decision.candidate("torch.cross_entropy").status == "rejected"
