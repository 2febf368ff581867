"""Faults in the source of a tiny plugin: which there are, which the kit finds, and that the plugin stays as it is."""

from __future__ import annotations

import ast
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentValueError, ManifestError
from portakernel.registry.plugin_manager import Package
from portakernel_kit.conformance.observing.isolation import Asked, Death
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.faults import running
from portakernel_kit.faults.fault import Judged
from portakernel_kit.faults.known import equal_faults, find_known, read_known, stale
from portakernel_kit.faults.listing import faults_of_files, list_faults, spread
from portakernel_kit.faults.native_faults import native_faults
from portakernel_kit.faults.pool import Ran
from portakernel_kit.faults.python_faults import ASSERTED, HUGE, TEXT, TUNING, python_faults
from portakernel_kit.faults.results import Results, digest, resumed
from portakernel_kit.faults.running import Terms, try_faults
from portakernel_kit.faults.serving import Baseline, FaultsJob, Working
from portakernel_kit.faults.sources import Sources
from portakernel_kit.faults.trying import Beginning, Circumstances, Ended, Putting
from portakernel_kit.faults.written import read_written

MANIFEST = """\
schema_version: 1
plugin: acme
defaults: {{targets: {{cpu: any}}}}
kernels:
  - {{op: add, entry: '{module}.add:add', dtypes: {{x: [float32], y: [x]}}}}
"""
ADD = """\
import os

import torch

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from {module}.scaling import scaled


def add(x, y, *, out=None):
    out = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    if x.numel() > 1 << 40:
        return x - y
    return torch.add(scaled(x), y, out=out)
"""
SCALING = """\
NAME = "kernel"


def scaled(x):
    return x * 1.0
"""
KERNEL = "__global__ void kernel(const float* x, int n) { if (i < n) y[i] = x[i] + 1; }\n"
ROOT = Path(__file__).parents[2]
TERMS = Terms(7, budget_s=0.4, patience_s=1.0)


@pytest.fixture
def plugin(with_acme, tmp_path):
    """A dispatcher with ``acme.add``, whose package has these files beside its own."""

    def make(**files: str) -> Dispatcher:
        module = f"acme_{tmp_path.name}"
        folder = tmp_path / module
        folder.mkdir()
        own = {"__init__": "", "add": ADD, "scaling": SCALING} | files
        for name, source in own.items():
            (folder / f"{name}.py").write_text(source.replace("{module}", module), encoding="utf-8")
        (folder / "kernel.cu").write_text(KERNEL, encoding="utf-8")
        (folder / "plugin.yaml").write_text(MANIFEST.format(module=module), encoding="utf-8")
        return with_acme(folder)

    return make


def sources_of(dispatcher):
    return Sources.of(dispatcher.registry.manager.plugins["acme"][0])


def kernels_of(dispatcher):
    return [dispatcher.registry.kernels["acme.add"]]


def written(dispatcher, tmp_path, *entries: dict[str, str]):
    """Faults written by hand."""
    lines = []
    for entry in entries:
        told = {"kernel": "acme.add", "file": "add.py", "kind": "test", "why": "it is a test", **entry}
        lines += [f"{'- ' if not i else '  '}{key}: {json.dumps(value)}" for i, (key, value) in enumerate(told.items())]
    file = tmp_path / "written.yaml"
    file.write_text("\n".join(lines), encoding="utf-8")
    return read_written(file, sources_of(dispatcher), kernels_of(dispatcher))


def judged(dispatcher, faults, terms=TERMS):
    """What came of faults, by what each puts in the place of the text before, and the events."""
    events = list(try_faults(dispatcher, sources_of(dispatcher), kernels_of(dispatcher), faults, terms))
    return {one.fault.after: one for one in events if isinstance(one, Judged)}, events


# --- which faults there are ------------------------------------------------------------------------------------------

EVERYTHING = '''\
"""Nothing of this is changed."""
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
__all__ = ["f"]
BLOCK_SIZE = 128
EPS = 1e-6


@functools.lru_cache(maxsize=1 + 1)
def f(x: int = 3, row_stride: int = 1, col_stride: int = 1, n: "int" = 0) -> list[int]:
    """Neither is this 1 + 1."""
    total: float = 0.0
    if not x and (n < 3 or n >= 10):
        raise ValueError(f"{x + 1} is wrong" + 1)
    logging.warning("so is %s", x + 1)
    for i in range(0, n):
        total += tl.load(x + i * row_stride, mask=(i < n) & (i > 0), other=0.0, eviction_policy="evict_last")
        tl.store(x + i * col_stride, tl.max(total.to(tl.float32), axis=0), mask=i < n)
    wide = i.to(tl.int64)
    tl.static_assert(n > 1)
    launch(x, n, num_warps=4, eps=EPS)
    while n:
        n -= 1
    part = x[1:n]
    return -total if n == 0 else tl.sum(x, axis=1), part
'''
CHANGED = {
    "arithmetic": ("*", "/"), "term": ("x + i * row_stride", "x"), "factor": ("i * row_stride", "i"),
    "mask": ("(i < n) & (i > 0)", "(i < n)"), "stride": ("row_stride", "col_stride"), "comparison": ("<", "<="),
    "boolean": ("or", "and"), "not": ("not x", "x"), "sign": ("-total", "total"), "constant": ("1e-6", "0.001"),
    "dtype": ("tl.float32", "tl.bfloat16"), "cast": ("total.to(tl.float32)", "total"), "function": ("max", "min"),
    "other": ("0.0", "1.0"), "keyword": ("x, axis=1", "x"), "bound": ("n", "n - 1"), "name": ("x", "row_stride"),
    "condition": ("n == 0", "False"), "update": ("+=", "="), "return": None, "statement": None,
}  # fmt: skip


def test_each_kind_of_fault_is_made_and_all_of_them_are_python_in_one_place():
    faults, _ = python_faults(EVERYTHING.encode(), "f.py")
    told = {(fault.kind, fault.before, fault.after) for fault in faults}
    assert {kind for kind, _, _ in told} == CHANGED.keys()
    for kind, change in CHANGED.items():
        assert change is None or (kind, *change) in told
    for fault in faults:
        changed = fault.applied(EVERYTHING.encode()).decode()
        ast.parse(changed)
        assert changed != EVERYTHING
        assert len(EVERYTHING) - len(fault.before) == len(changed) - len(fault.after)
        assert EVERYTHING.splitlines()[fault.place.line - 1].strip() == fault.text
    assert len({fault.id for fault in faults}) == len(faults)


def test_texts_annotations_imports_and_what_is_raised_stay():
    faults, _ = python_faults(EVERYTHING.encode(), "f.py")
    lines = {fault.text for fault in faults}
    assert not [line for line in lines if "import" in line or "raise" in line or "is this" in line or "__all__" in line]
    assert not [line for line in lines if line.startswith(("@", "if TYPE_CHECKING"))]
    assert not [fault for fault in faults if fault.before in ("int", '"int"', "list[int]")]


def test_what_cannot_change_a_result_is_left_out_by_a_rule():
    faults, excluded = python_faults(EVERYTHING.encode(), "f.py")
    assert excluded.keys() == {TUNING, HUGE, TEXT, ASSERTED}
    assert not [fault for fault in faults if fault.before in ("128", "4")]
    without = [fault.after for fault in faults if fault.kind == "mask" and "eviction_policy" in fault.after]
    assert without == ['x + i * row_stride, eviction_policy="evict_last"']


def test_an_identity_outlives_edits_elsewhere():
    faults, _ = python_faults(EVERYTHING.encode(), "f.py")
    longer, _ = python_faults(EVERYTHING.replace("EPS = 1e-6\n", "EPS = 1e-6\nMORE = 5\n").encode(), "f.py")
    assert {fault.id for fault in faults} < {fault.id for fault in longer}


def test_equal_changes_of_equal_lines_are_counted():
    faults, _ = python_faults(b"a = b + 1\na = b + 1\n", "f.py")
    minus = [fault for fault in faults if fault.after == "-"]
    assert [fault.occurrence for fault in minus] == [0, 1]
    assert minus[0].id != minus[1].id


CPP = """\
// if (a < b) a + 1
#define N 3
template <int K>
__device__ float f(const float* x, int n) {
  const char* text = "1 < 2";
  if (n < 8 && !x) return fmaxf(1e-6f, x[0] * 2.0f);  /* 5 - 4 */
  __syncthreads();
  sum += -x[0];
}
"""


def test_faults_of_c_plus_plus_are_found_in_its_tokens():
    faults = native_faults(CPP.encode(), "f.cu")
    told = {(fault.kind, fault.before, fault.after) for fault in faults}
    assert {
        ("comparison", "<", "<="), ("constant", "8", "9"), ("boolean", "&&", "||"), ("not", "!", ""),
        ("constant", "1e-6f", "0.001f"), ("function", "fmaxf", "fminf"), ("arithmetic", "*", "/"),
        ("condition", "n < 8 && !x", "true"), ("statement", "__syncthreads()", ""), ("update", "+=", "="),
        ("constant", "2.0f", "3.0f"),
    } <= told  # fmt: skip
    assert {fault.place.line for fault in faults} == {6, 7, 8}


def test_files_are_those_that_the_kernel_reaches(plugin):
    dispatcher = plugin(other="x = 1 + 1\n")
    sources = sources_of(dispatcher)
    reached = {sources.name(file) for file in sources.reached(kernels_of(dispatcher)[0])}
    assert reached == {"add.py", "scaling.py", "kernel.cu", "__init__.py"}


def test_a_choice_is_of_all_files_and_kinds_and_equal_for_an_equal_seed(plugin):
    dispatcher = plugin()
    faults = list_faults(sources_of(dispatcher), kernels_of(dispatcher)).faults
    some = spread(faults, lambda fault: "add", 7)
    assert Counter(some) == Counter(faults)
    assert {fault.file for fault in some[:3]} == {"add.py", "scaling.py", "kernel.cu"}
    assert some == spread(reversed(faults), lambda fault: "add", 7) != spread(faults, lambda fault: "add", 8)


# --- what comes of them ----------------------------------------------------------------------------------------------

TRIED = (
    {"before": "torch.add(scaled(x), y", "after": "torch.add(x, x"},
    {"before": "if out is None", "after": "if True"},
    {"before": "torch.empty(x.shape", "after": "torch.zeros(x.shape"},
    {"before": "x - y", "after": "y - x"},
    {"before": "return torch.add", "after": "while y is not None: pass\n    return torch.add"},
    {"before": "return torch.add(s", "after": "os.abort()\n    return torch.add(s"},
    {"before": "import os", "after": "import os, no_such_module"},
    {
        "before": "return torch",
        "after": "raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, 'not today'))\n    return torch",
    },
)


@pytest.mark.usefixtures("forked_observers")
def test_what_comes_of_faults_and_the_plugin_stays_as_it_is(plugin, tmp_path):
    dispatcher = plugin()
    before = digest(sources_of(dispatcher))
    told, events = judged(dispatcher, written(dispatcher, tmp_path, *TRIED))
    verdicts = [(told[entry["after"]].verdict, told[entry["after"]].by) for entry in TRIED]
    assert verdicts == [
        ("killed", "forward"),
        ("killed", "out"),
        ("alive", ""),
        ("not_run", ""),
        ("killed", "hung"),
        ("killed", "died"),
        ("killed", "load"),
        ("killed", "coverage"),
    ]
    assert told["y - x"].detail == "its line does not run here"
    assert told[TRIED[5]["after"]].detail == "it ended its process: signal 6 (SIGABRT)"
    assert told[TRIED[6]["after"]].detail == "ModuleNotFoundError: No module named 'no_such_module'"
    assert told["torch.zeros(x.shape"].asked > 1
    assert told[TRIED[7]["after"]].detail.endswith("the kernel declared that it cannot run: cannot_run: not today")
    (baseline,) = (event for event in events if isinstance(event, Baseline))
    assert (baseline.kernel, baseline.fails, baseline.absent) == ("acme.add", "", "")
    assert digest(sources_of(dispatcher)) == before
    assert not list(sources_of(dispatcher).folder.rglob("__pycache__"))


def test_while_there_is_time_requests_are_put_that_were_not_measured(plugin):
    dispatcher = plugin()
    packages = Asked(dispatcher.registry.manager.packages, frozenset(), "acme.add", None)
    putting = Putting((), 0.3, more=("acme.add",))
    events = list(putting.events(Circumstances(packages, 7, "acme"), None))
    ended = [event for event in events if isinstance(event, Ended)]
    begun = [event for event in events if isinstance(event, Beginning)]
    assert ended
    assert all(one.is_new and one.failed is None for one in ended)
    assert all(json.loads(one.request)["seed"] == 8 for one in begun)
    assert Ran(tuple(events), "done").new_request == begun[-1].request


@pytest.mark.parametrize("fails", [False, True])
def test_what_such_a_request_finds_is_put_to_the_kernel_as_it_is(plugin, tmp_path, fails):
    dispatcher = plugin()
    (fault,) = written(dispatcher, tmp_path, TRIED[0])
    judged = Judged(fault, "killed", "forward", "acme.add", again="{...}")
    ran = Ran((), "died" if fails else "done", "signal 11")

    class Pool:
        def run(self, tasks, patience_s):
            (task,) = tasks
            assert (task.file, task.job.witness) == ("", ("acme.add", "{...}"))
            assert patience_s(task.key) > 0
            return iter([(task.key, ran)])

    job = FaultsJob(None, "acme", tmp_path, tmp_path, (), ("acme.add",), (fault,), 7)
    (event,) = job._confirmed(Pool(), [judged])
    if fails:
        assert event.verdict == "alive"
        assert event.detail == "a request fails without the fault too: {...}: signal 11"
    else:
        assert event == judged


COMPILING = """\
from pathlib import Path


def scaled(x):
    if "#error" in Path(__file__).with_name("kernel.cu").read_text(encoding="utf-8"):
        raise RuntimeError("kernel.cu does not compile")
    return x * 1.0
"""


@pytest.mark.usefixtures("forked_observers")
def test_of_c_plus_plus_that_survives_only_what_is_compiled_is_alive(plugin):
    dispatcher = plugin(scaling=COMPILING)
    sources = sources_of(dispatcher)
    (sources.folder / "other.cu").write_text(KERNEL, encoding="utf-8")
    faults = [
        replace(next(fault for fault in faults_of_files(sources, [file]) if fault.before == "<"), kernels=("acme.add",))
        for file in ("kernel.cu", "other.cu")
    ]
    _, events = judged(dispatcher, faults)
    verdicts = {event.fault.file: (event.verdict, event.detail) for event in events if isinstance(event, Judged)}
    assert verdicts == {"kernel.cu": ("alive", ""), "other.cu": ("not_run", "its line is not compiled here")}


@pytest.mark.usefixtures("forked_observers")
def test_a_plugin_that_fails_as_it_is_ends_the_run(plugin, tmp_path):
    dispatcher = plugin(scaling=SCALING.replace("1.0", "2.0"))
    told, events = judged(dispatcher, written(dispatcher, tmp_path, TRIED[0]))
    assert told == {}
    fails = [event.fails for event in events if isinstance(event, Baseline)]
    assert len(fails) == 1
    assert fails[0].startswith("add[")


@pytest.mark.usefixtures("forked_observers")
def test_a_witness_has_to_pass_without_the_fault_and_to_fail_with_it(plugin, tmp_path):
    dispatcher = plugin()
    shows = '{"kernel":"acme.add","dtypes":{"x":"float32","y":"float32"},"leading":[3],"seed":7}'
    refused = shows.replace("float32", "float64")
    faults = written(
        dispatcher, tmp_path, {**TRIED[0], "shows": shows}, {**TRIED[2], "shows": shows}, {**TRIED[1], "shows": refused}
    )
    told, _ = judged(dispatcher, faults, Terms(7, budget_s=5.0, proving=True))
    assert [told[TRIED[i]["after"]].verdict for i in (0, 2, 1)] == ["proven", "unproven", "unproven"]
    assert told[TRIED[0]["after"]].again == shows
    assert told[TRIED[2]["after"]].detail == "with the fault the request passes too"
    assert told[TRIED[1]["after"]].detail.startswith("the request does not run: refused (x")


def test_a_process_that_is_lost_is_replaced_and_tries_what_is_left(plugin, tmp_path, monkeypatch):
    dispatcher = plugin()
    faults = written(dispatcher, tmp_path, *TRIED[:3])
    jobs = []

    def run_apart(job, patience_s):
        jobs.append(job)
        yield Working("importing")
        yield Judged(job.faults[0], "killed", "forward")
        yield Death("ended", "it ended its process: signal 9 (SIGKILL)", "") if len(jobs) < 2 else Finished()

    monkeypatch.setattr(running, "run_apart", run_apart)
    told, _ = judged(dispatcher, faults, Terms(7, most=3))
    assert [job.faults for job in jobs] == [tuple(faults), tuple(faults[1:])]
    assert [job.most for job in jobs] == [3, 2]
    assert len(told) == 2


# --- lists -----------------------------------------------------------------------------------------------------------


def test_known_equal_faults_are_told_apart_and_stale_ones_named(plugin, tmp_path):
    dispatcher = plugin()
    sources = sources_of(dispatcher)
    file = tmp_path / "faults.yaml"
    entry = (
        "- {file: scaling.py, text: 'return x * 1.0', kind: factor, before: x * 1.0, after: x, why: 'one times x'}\n"
    )
    file.write_text(f"{entry}{entry.replace('1.0', '2.0')}- {{plugin: other}}\n".replace("- {plugin: other}\n", ""))
    known = read_known(file, "acme")
    faults = list_faults(sources, kernels_of(dispatcher)).faults
    equal = equal_faults(faults, known)
    assert [(fault.kind, fault.after, entry.why) for fault, entry in equal.items()] == [("factor", "x", "one times x")]
    gone = stale(faults_of_files(sources, {entry.identity[0] for entry in known}), known)
    assert [entry.place for entry in gone] == [f"{file}:2"]
    assert find_known(tmp_path, sources.folder) == file


def test_no_entry_of_our_own_list_is_stale(registry):
    packages = [package for package, _ in registry.manager.plugins.values() if package.folder is not None]
    for package in packages:
        sources = Sources.of(package)
        file = find_known(ROOT, sources.folder)
        assert file == ROOT / "kit" / "faults" / "equal.yaml"
        known = read_known(file, package.name)
        assert [entry.place for entry in stale(faults_of_files(sources, {e.identity[0] for e in known}), known)] == []


def test_a_list_of_equal_faults_names_each_wrong_entry(tmp_path):
    file = tmp_path / "faults.yaml"
    file.write_text("- {file: a.py, text: x, kind: y, before: z, after: w}\n- {fil: 3}\n", encoding="utf-8")
    with pytest.raises(ManifestError) as raised:
        read_known(file, "acme")
    assert raised.value.problems[0] == f"{file}:1: has no why"
    assert f"{file}:2: knows no key 'fil'; its keys are " in raised.value.problems[-1]


def test_faults_written_by_hand_have_to_fit_once_and_all_that_do_not_are_named(plugin, tmp_path):
    dispatcher = plugin()
    module = sources_of(dispatcher).package.module
    (fault,) = written(dispatcher, tmp_path, {**TRIED[0], "file": f"somewhere/{module}/add.py"})
    assert (fault.file, fault.kernels) == ("add.py", ("acme.add",))
    with pytest.raises(ManifestError) as raised:
        written(
            dispatcher,
            tmp_path,
            {"before": "x", "after": "y"},
            {"before": "no such text", "after": "y"},
            {"before": "x - y", "after": "y", "file": "../add.py"},
            {"before": "x - y", "after": "y", "kernel": "acme.ad"},
        )
    file = tmp_path / "written.yaml"
    count = ADD.count("x")
    assert [problem.partition("; ")[0] for problem in raised.value.problems] == [
        f"{file}:1: add.py has the text of before {count} times, and has to have it once: 'x'",
        f"{file}:7: add.py has the text of before never, and has to have it once: 'no such text'",
        f"{file}:13: there is no file '../add.py' in {sources_of(dispatcher).folder}",
        f"{file}:19: knows no kernel 'acme.ad' of acme",
    ]


def test_a_run_goes_on_where_its_file_ends_unless_the_sources_are_others(plugin, tmp_path):
    dispatcher = plugin()
    sources = sources_of(dispatcher)
    faults = list_faults(sources, kernels_of(dispatcher)).faults
    results = Results("acme", 7, digest(sources), {"acme.add": "add"})
    results.judged = [Judged(faults[0], "killed", "forward", "acme.add"), Judged(faults[1], "equal")]
    file = tmp_path / "faults.json"
    file.write_text(json.dumps(results.to_json()), encoding="utf-8")
    assert resumed(file, results, faults) == results.judged[:1]
    assert resumed(file, Results("acme", 7, "others", {}), faults) == []
    with pytest.raises(ArgumentValueError, match="holds faults of acme, not of other"):
        resumed(file, Results("other", 7, digest(sources), {}), faults)
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(ArgumentValueError, match="holds no results"):
        resumed(file, results, faults)


def test_a_package_without_a_folder_is_told(tmp_path):
    with pytest.raises(ArgumentValueError, match="is no package with a folder of its own"):
        Sources.of(Package("acme", "acme", "acme-kernels", "1", Path(tmp_path)))
