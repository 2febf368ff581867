"""Every fenced block of README.md and docs/ is run or checked here, or by a test that is named with the reason."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from cxx import needs_cxx

import portakernel
from portakernel import cli, ops
from portakernel.cli.calls_file import load_calls
from portakernel.deciding.policy_file import load_policy_file
from portakernel.manifest.loading import load_manifest
from portakernel.manifest.models import PluginManifest
from portakernel.manifest.yaml_file import read_yaml
from portakernel.plan import read_form
from portakernel.runtime import dispatcher
from portakernel.words.masks import MASKS
from portakernel_kit.conformance.drawn.spelling import parse_request
from portakernel_kit.faults.known import entry_problems, read_known
from portakernel_kit.faults.written import WANTED

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    language: str
    text: str
    name: str

    def __str__(self) -> str:
        return self.name


def blocks() -> Iterator[Block]:
    """All of them, named by page and first line; of several that begin alike, by their number too."""
    seen = Counter[str]()
    for page in PAGES:
        for _, language, text in re.findall(
            r"^( *)```(\w*)\n(.*?)^\1```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        ):
            name = f"{page}: {text.partition(chr(10))[0]}"
            seen[name] += 1
            yield Block(page, language, text, name if seen[name] == 1 else f"{name} ({seen[name]})")


# Blocks that another test holds to what they show, or that take a GPU or minutes: the test, and why it is not here.
ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "README.md: $ make demo": (
        "tests/docs/test_readme.py::test_the_demo_prints_what_is_shown",
        "make would set up an environment; the test runs what it runs then. .ci/bare runs the command itself",
    ),
    "README.md: A byte-level decoder in the shape of Llama over a page of portakernel's own: 1767 bytes, float32": (
        "tests/docs/test_readme.py::test_the_demo_prints_what_is_shown", "the output of `make demo`",
    ),
    "README.md: $ make test": (
        "tests/docs/test_blocks.py::test_make_test_runs_pytest",
        "it would run itself; .ci/bare runs it in a bare system",
    ),
    **dict.fromkeys(
        ("docs/architecture.md: portakernel/", "docs/architecture.md: kit/portakernel_kit/"),
        ("tests/docs/test_architecture.py::test_the_tree_has_the_folders_that_there_are", "a tree of folders"),
    ),
    "docs/emulation.md: pip install 'portakernel[emulate]'          # and a C++17 compiler, which compiles the engine "
    "once": (
        "tests/cli/test_emulate.py::test_check_runs_cases_in_the_emulator_and_reports_it_as_their_place",
        "each takes many seconds; the tests of that file run smaller ones",
    ),
    "docs/emulation.md: # portakernel_acme/add.py": (
        "tests/conformance/test_emulator.py::test_the_plugin_that_is_shown_is_emulated", "Triton reads it from a file",
    ),
    "docs/emulation.md: from portakernel.emulation import emulating": (
        "tests/emulation/test_session.py::test_a_triton_kernels_wrapper_is_run_whole_and_computes_what_float64_does",
        "the kernel is the reader's",
    ),
    "docs/emulation.md: an access of 4 bytes ends 4 bytes past the end of x: buffer_load_dword v1, v0, s4, 0, v1 at "
    "0x40 (kernels.py:11); workgroup (0, 0, 0), wave 0, lane 63": (
        "tests/emulation/test_planted_faults.py::test_a_load_past_the_end_is_named_with_its_instruction_and_line",
        "a finding of a faulty kernel",
    ),
    "README.md: import torch": (
        "tests/docs/test_readme.py::test_the_quick_start_runs", "what it prints is compared there",
    ),
    "README.md: import torch (2)": (
        "tests/docs/test_readme.py::test_the_example_in_transformers_runs",
        "what it prints is compared there",
    ),
    "docs/policy.md: # yaml-language-server: $schema=https://…/policy.schema.json": (
        "tests/docs/test_policy_page.py::test_the_example_is_valid_and_the_misspelling_is_told_as_shown",
        "with its reasons",
    ),
    "docs/policy.md: $ export PORTAKERNEL_POLICY=/etc/portakernel/policy.yaml": (
        "tests/docs/test_policy_page.py::test_the_reasons_are_those_of_the_decision",
        "in force by that variable there",
    ),
    "docs/policy.md: $ cat fleet.yaml": (
        ("tests/docs/test_policy_page.py"
        "::test_a_policy_that_names_what_is_absent_denied_and_broken_serves_and_warns_as_shown"),
        "with its files and its packages",
    ),
    "docs/policy.md: $ export PORTAKERNEL_POLICY=/etc/portakernel/base.yaml:/etc/portakernel/host.yaml": (
        ("tests/core/deciding/test_policy_fleet.py"
        "::test_denials_and_requirements_of_all_files_add_up_and_the_environments_too"),
        "over two files of the test's own",
    ),
    "docs/policy.md: $ portakernel validate policy.yaml": (
        "tests/docs/test_policy_page.py::test_the_example_is_valid_and_the_misspelling_is_told_as_shown",
        "whole output",
    ),
    "docs/policy.md: import portakernel": (
        "tests/docs/test_policy_page.py::test_the_python_shown_runs", "over the page's own example",
    ),
    "docs/clients.md: $ PORTAKERNEL_CLIENTS=vllm vllm serve MODEL                           # all that can be served": (
        "tests/clients/vllm/test_vllm_engines.py::test_tokens_are_those_of_vllm_alone", "needs vLLM: `make clients`",
    ),
    "docs/clients.md: from portakernel.integrations.vllm import worker_reports": (
        "tests/clients/vllm/test_vllm_engines.py::test_every_layer_of_the_model_is_served_and_none_bypassed",
        "needs vLLM: `make clients`",
    ),
    "docs/clients.md: RMSNorm (add_rms_norm)                      64 calls     0 traces  served": (
        "tests/clients/vllm/test_vllm_engines.py::test_every_layer_of_the_model_is_served_and_none_bypassed",
        "needs vLLM: `make clients`",
    ),
    "docs/clients.md: $ PORTAKERNEL_CLIENTS=sglang python -m sglang.launch_server --model-path ...": (
        "tests/clients/sglang/test_faults.py::test_the_plugin_hooks_what_the_environment_names_and_nothing_else",
        "needs SGLang: `make clients`",
    ),
    "docs/clients.md: from portakernel.integrations import diffusers as integration": (
        "tests/clients/diffusers/test_numbers.py::test_a_model_that_is_enabled_gives_native_s_numbers",
        "needs diffusers: `make clients`",
    ),
    "docs/shadow.md: import portakernel": (
        "tests/shadow/test_page.py::test_the_python_shown_runs", "and stops what it began",
    ),
    "docs/metrics.md: import portakernel": (
        "tests/metrics/test_page.py::test_the_python_shown_runs", "where both packages are installed",
    ),
    "docs/metrics.md: # calls that a worse kernel serves than could, by the kernel that cannot": (
        "tests/metrics/test_page.py::test_the_queries_ask_for_what_there_is", "nothing here answers PromQL",
    ),
    "docs/warmup.md: portakernel.warmup(step, x)": (
        "tests/graphs/test_decoder_step.py::test_a_captured_decoder_step_replays_with_the_eager_numbers",
        "captures a CUDA graph: needs a GPU",
    ),
    "docs/warmup.md: 2 kinds of calls are warm after 2 runs in 3.1 s": (
        "tests/graphs/test_warmup.py::test_the_report_reads", "of a GPU: the form is held there",
    ),
    "docs/nn.md: 1 of Sequential (layer_norm)                 1 calls     0 traces  served": (
        "tests/integrations/test_patch.py::test_the_page_shows_what_is_printed", "what the block above it prints",
    ),
    "docs/native.md: from portakernel.authoring.native import Kernel, Options, Source, Unit": (
        "tests/native/test_gpu.py::test_the_numbers_are_right_on_the_default_stream_and_on_another",
        "launches on a GPU; the names are held here",
    ),
}  # fmt: skip
# The last lines of pytest, whose numbers are a run's.
SUMMARY = re.compile(r"=+ \d+ passed, \d+ skipped in [\d.]+s \([\d:]+\) =+\n")


def check_session(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``$ portakernel …`` and what it prints, with ``...`` for whatever stands there."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        words = shlex.split(command)
        assert words[0] == "portakernel", f"{block}: teach this test to run {words[0]!r}"
        cli.main(words[1:])
        # of what ships here: the OpenCL example may be installed beside it
        printed = [line for line in capsys.readouterr().out.splitlines() if "opencl" not in line]
        pattern = "\n".join(".*" if line == "..." else re.escape(line) for line in shown.splitlines())
        assert re.fullmatch(pattern, "\n".join(printed), re.DOTALL), "\n".join(printed)


def check_commands(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands to copy: the command line takes them, and those that answer from manifests are run."""
    for line in block.text.splitlines():
        words = shlex.split(line.partition(">")[0])[1:]
        parse(words)
        if words[0] in ("list", "matrix", "explain"):
            assert cli.main(words) == 0
            json.loads(capsys.readouterr().out)


def parse(words: list[str]) -> None:
    """The command line as click reads it, up to what the command would do."""
    command: Any = typer.main.get_command(cli.make_app([words[0]]))
    found = getattr(command, "commands", {}).get(words[0], command)
    found.make_context(words[0], words[1:])


def check_json(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer of a command: the one error that is shown, of an op that is none."""
    shown = json.loads(block.text)
    assert cli.main(["explain", "ad", "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == shown


def check_yaml(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A manifest, a file of calls or a list of faults, by its keys."""
    file = folder / "shown.yaml"
    file.write_text(block.text, encoding="utf-8")
    if block.page == "docs/policy.md":
        assert load_policy_file(file, dispatcher().registry).layers != ()
    elif block.page == "docs/shadow.md":
        assert load_policy_file(file, dispatcher().registry).shadow is not None
    elif block.page == "docs/plans.md":
        assert [op for _, op, _ in read_form(file).entries()] == ["rms_norm", "rms_norm"]
    elif "\n  shows:" in block.text:
        (entry,) = read_yaml(file).data
        assert entry_problems(entry, WANTED, frozenset((*WANTED, "shows"))) == []
        kernels = {"acme.rms_norm": dispatcher().registry.kernels["triton.rms_norm"]}
        assert parse_request(entry["shows"], kernels).seed == 7
    elif "why:" in block.text:
        assert read_known(file, "acme") != ()
    elif "\ncalls:" in block.text:
        assert load_calls(file) != []
    else:
        manifest = load_manifest(PluginManifest, file, strict=True).manifest
        assert [*manifest.kernels, *manifest.ops] != []


def check_toml(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry point of our group."""
    assert list(tomllib.loads(block.text)["project"]["entry-points"]) == ["portakernel"]


def check_python(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code that runs, over what the page takes as given, on this machine's device and at a size for it."""
    text = block.text.replace("(4096, ", "(16, ").replace('device="cuda:0"', 'device="cpu"')
    with GIVEN.get(block.page, nothing)() as given:
        exec(compile(text, block.page, "exec"), given)


@contextlib.contextmanager
def nothing() -> Iterator[dict[str, Any]]:
    yield {}


@contextlib.contextmanager
def warmup_page() -> Iterator[dict[str, Any]]:
    x, weight = torch.ones(16, 64), torch.ones(64)

    def step(model: Callable[..., Any], tokens: torch.Tensor) -> Any:
        return model(tokens, weight)

    with portakernel.policy(deny="inductor"):  # what it would build takes minutes, and is no part of the page
        yield {"x": x, "weight": weight, "step": step, "model": ops.rms_norm, "tokens": x}


@contextlib.contextmanager
def transformers_page() -> Iterator[dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    size = transformers.LlamaConfig(hidden_size=64, num_hidden_layers=1, intermediate_size=64, vocab_size=99)
    inputs = {"input_ids": torch.randint(3, 99, (2, 8)), "max_new_tokens": 2, "do_sample": False}
    yield {"model": transformers.LlamaForCausalLM(size), "inputs": inputs}


@contextlib.contextmanager
def serving_page() -> Iterator[dict[str, Any]]:
    known = dict(MASKS)
    with portakernel.policy(reference="allow"):  # on a CPU nothing else serves, and Triton's interpreter is slow
        yield {}
    MASKS.clear()
    MASKS.update(known)


@contextlib.contextmanager
def arrays_page() -> Iterator[dict[str, Any]]:
    pytest.importorskip("jax")
    yield {}


GIVEN = {
    "docs/arrays.md": arrays_page,
    "docs/warmup.md": warmup_page,
    "docs/transformers.md": transformers_page,
    "docs/serving.md": serving_page,
}
CHECKS = {
    "console": check_session, "": check_commands, "json": check_json, "yaml": check_yaml, "toml": check_toml,
    "python": check_python,
}  # fmt: skip


def _needing(block: Block) -> Any:
    """The block as a parameter, skipped where it compiles and nothing here can."""
    return pytest.param(block, marks=[needs_cxx] if "torch.compile(" in block.text else [])


HERE = [block for block in blocks() if str(block) not in ELSEWHERE and not SUMMARY.fullmatch(block.text)]


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")  # which kernels there are is not told here
@pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning")
@pytest.mark.parametrize("block", [_needing(block) for block in HERE], ids=str)
def test_a_block_is_what_happens(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert block.language in CHECKS, f"{block}: nothing here checks a block of {block.language!r}"
    CHECKS[block.language](block, tmp_path, capsys)


@pytest.mark.parametrize("named", ELSEWHERE)
def test_what_is_checked_elsewhere_is_there_and_so_is_its_test(named: str) -> None:
    assert named in {str(block) for block in blocks()}, "the block is gone: take its line away"
    file, _, test = ELSEWHERE[named][0].partition("::")
    assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


def test_make_test_runs_pytest() -> None:
    recipe = re.search(r"^test: setup.*\n\t(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe is not None
    assert recipe[1] == "@$(VENV_PYTHON) -m pytest $(PYTEST_ARGS)"


def test_the_names_that_the_native_page_imports_exist() -> None:
    (block,) = [block for block in blocks() if block.page == "docs/native.md"]
    names: dict[str, object] = {}
    exec(compile(block.text.partition("\n")[0], block.page, "exec"), names)
    assert {"Kernel", "Source", "Unit"} <= names.keys()
    compile(block.text, block.page, "exec")
