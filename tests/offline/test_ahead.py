"""What is compiled ahead, in other processes and on tensors without memory, is what launches look for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton
from triton.backends.compiler import GPUTarget

from portakernel.authoring.triton import Processor, pretending
from portakernel.claims.request import Phase
from portakernel.contracts import contract
from portakernel.offline.compiled import Compiled
from portakernel.offline.forms import Form
from portakernel.offline.job import Job, call_on_meta
from portakernel.offline.outcome import Outcome
from portakernel.offline.workers import compile_all, compile_job
from portakernel.runtime import dispatcher
from portakernel.triton_launch import launch
from portakernel.triton_launch.offline import compiling
from portakernel.warming import ahead
from portakernel.warming.building import Progress

MULTIPROCESSORS = 132
_NUMBERS = count(5000)  # Triton keeps compiled kernels per device number


class Driver:
    """An sm_90's driver that records launches: Triton's JIT does for it what it does for a real one."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, ...]] = []
        self.number = next(_NUMBERS)
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232448},
            load_binary=lambda name, kernel, shared, device: (object(), object(), 32, 0, 1024),
        )

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *args: self.launched.append(args[:3])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of compiled kernels, for worker processes too."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def here(monkeypatch, cache) -> Iterator[Driver]:
    """A machine with an sm_90, as far as Triton can tell."""
    driver = Driver()
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(launch, "_HELD", {})
    with pretending(Processor("sm_90", MULTIPROCESSORS, 32), None):  # launches are Triton's
        yield driver


def job(op: str, *tensors: torch.Tensor | None, phases=(Phase.INFERENCE,), **values: Any) -> Job:
    given = contract(op).values(values)
    forms = tuple(None if tensor is None else Form.of(tensor) for tensor in tensors)
    return Job(f"triton.{op}", "nvidia:sm_90", f"a call of {op}", phases, forms, tuple(given.values()), MULTIPROCESSORS)


def like_calls() -> list[Job]:
    """Calls of several kernels: sizes that 16 divides and others, a size of 1, rows apart, an address off alignment."""
    bf16 = torch.bfloat16
    x = torch.zeros(8, 4096, dtype=bf16)
    apart = torch.zeros(8, 4099, dtype=bf16)[:, :4095]
    off = torch.zeros(4097, dtype=bf16)[1:]
    training = [tensor.clone().requires_grad_() for tensor in (x, x[0])]
    both = (Phase.TRAINING, Phase.BACKWARD)
    return [
        job("rms_norm", x, x[0], eps=1e-6),
        job("rms_norm", apart, apart[0], eps=1e-6),
        job("rms_norm", torch.zeros(8, 1), torch.zeros(1), eps=1e-6),
        job("rms_norm", *training, phases=both, eps=1e-6),
        job("add", off, off),
        job("quantize_fp8", torch.zeros(300, 200, dtype=bf16), granularity="tensor"),
    ]


def lacking(asked: list[Job]) -> list[Job]:
    return ahead.lacking(dispatcher(), [(one, None) for one in asked])


def test_launches_find_in_the_cache_what_workers_compiled_ahead(here, forked_workers, monkeypatch):
    asked = like_calls()
    assert lacking(asked) == asked
    outcomes = list(compile_all(asked, workers=2))
    assert [outcome.error for outcome in outcomes] == [""] * len(asked)
    assert here.launched == []
    assert lacking(asked) == []
    hits: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        triton.knobs.compilation,
        "listener",
        lambda *, src, metadata, metadata_group, times, cache_hit: hits.append((metadata["hash"], cache_hit)),
    )
    for one in asked:
        call_on_meta(dispatcher(), dispatcher().registry.kernels[one.kernel], one)
    assert {key for key, _ in hits} == {f.key for outcome in outcomes for f in outcome.functions}
    assert all(hit for _, hit in hits)
    assert len(here.launched) >= len(hits) >= len(asked) + 2  # backward launches more than one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(8, 4096), torch.zeros(8, 4095)),
        (torch.zeros(8, 4096), torch.zeros(8, 4096, dtype=torch.float16)),
        (torch.zeros(8, 4096), torch.zeros(8 * 4096 + 1)[1:].view(8, 4096)),
    ],
    ids=["size", "dtype", "alignment"],
)
def test_what_was_compiled_for_one_call_does_not_count_for_another(here, one, other):
    weights = torch.zeros(4096, dtype=one.dtype), torch.zeros(other.shape[-1], dtype=other.dtype)
    compiled, asked = (job("rms_norm", x, w, eps=1e-6) for x, w in zip((one, other), weights, strict=True))
    assert compile_job(compiled).error == ""
    assert lacking([compiled, asked]) == [asked]


def test_the_number_of_rows_counts_for_nothing_and_one_of_equal_jobs_is_compiled(here):
    weight = torch.zeros(4096)
    asked = [job("rms_norm", torch.zeros(rows, 4096), weight, eps=1e-6) for rows in (8, 9, 4096)]
    assert lacking(asked) == asked[:1]


def test_the_number_of_multiprocessors_is_that_of_the_device(here):
    """The shares of as many programs as run side by side are one block of a later program."""
    x = torch.zeros(4096, 4096, dtype=torch.bfloat16)
    here_now = job("quantize_fp8", x, granularity="tensor")
    assert compile_job(here_now).error == ""
    elsewhere = replace(here_now, multiprocessors=100)
    assert lacking([here_now]) == []
    assert lacking([elsewhere]) == [elsewhere]


def test_asking_what_is_lacking_leaves_kernels_and_driver_alone(here):
    from portakernel_plugins.triton.norms.norm_forward import _forward

    before = dict(_forward.device_caches)
    assert len(lacking(like_calls()[:1])) == 1
    assert triton.runtime.driver.active is here
    assert dict(_forward.device_caches) == before
    assert here.launched == []


def test_a_launch_after_it_was_asked_is_compiled_and_announced_as_ever(here):
    from portakernel.tensors.compilation import compilations

    asked = like_calls()[0]
    kernel = dispatcher().registry.kernels[asked.kernel]
    call_on_meta(dispatcher(), kernel, asked)
    mark = len(compilations())
    assert lacking([asked]) == []
    call_on_meta(dispatcher(), kernel, asked)
    assert len(compilations()) == mark


def test_a_call_that_needs_its_tensors_values_is_left_to_itself_and_the_log_says_so(monkeypatch, caplog):
    def refuse(*_: Any) -> None:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")

    monkeypatch.setattr(ahead, "call_on_meta", refuse)
    with caplog.at_level(logging.DEBUG, logger="portakernel"):
        assert lacking(like_calls()[:2]) == []
    why = "is not compiled ahead of its call: NotImplementedError: Cannot copy out of meta tensor; no data!"
    assert caplog.messages == [f"{one.kernel} {why}" for one in like_calls()[:2]]


def test_few_jobs_are_not_worth_other_processes(monkeypatch):
    asked = like_calls()[: ahead.WORTH_WORKERS]
    monkeypatch.setattr(ahead, "lacking", lambda now, jobs: [one for one, _ in jobs])
    made: list[list[Job]] = []

    def compile_all(jobs: list[Job], workers: int | None):
        made.append(jobs)
        yield from (Outcome(one.kernel, one.target, str(one)) for one in jobs)

    monkeypatch.setattr(ahead, "compile_all", compile_all)
    told: list[tuple[int, int]] = []
    progress = Progress(lambda text: None, lambda done, total: told.append((done, total)))
    pairs: list[Any] = [(one, None) for one in asked]
    assert ahead.compile_ahead(dispatcher(), pairs[:-1], progress) == []
    assert len(ahead.compile_ahead(dispatcher(), pairs, progress)) == len(asked)
    assert made == [asked]
    assert told == [(done, len(asked)) for done in range(len(asked) + 1)]


def test_a_plugin_that_only_compiles_for_elsewhere_takes_no_part(monkeypatch):
    kernel = dispatcher().registry.kernels["triton.add"]
    assert ahead._fills_caches(dispatcher(), kernel)
    monkeypatch.setattr(ahead, "offline_context", lambda now, kernel: lambda target: nullcontext([]))
    assert not ahead._fills_caches(dispatcher(), kernel)
    assert not ahead._fills_caches(dispatcher(), dispatcher().registry.kernels["torch.add"])


def test_a_form_is_a_tensor_without_its_memory():
    x = torch.zeros(100, dtype=torch.float16)[3:93].view(9, 10)[:, 1:6].requires_grad_()
    form = Form.of(x)
    made = form.on_meta()
    assert (made.shape, made.stride(), made.dtype) == (x.shape, x.stride(), x.dtype)
    assert made.data_ptr() % 16 == x.data_ptr() % 16
    assert (form.requires_grad, made.is_meta) == (True, True)
    assert Form.of(torch.zeros(0, 4)).on_meta().shape == (0, 4)


def test_dry_is_this_threads_affair_and_reads_nothing(cache):
    from portakernel.words.target import Target

    before = triton.runtime.driver._active
    with compiling(Target("nvidia", "sm_90"), multiprocessors=132, dry=True) as found:
        assert triton.runtime.driver._active is before
    assert found == []
    assert Compiled("m.f", "nvidia:sm_90").assembly == ""
