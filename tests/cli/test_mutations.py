"""``portakernel lint --mutate``: on one plugin as it is, and around what is tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from portakernel import runtime
from portakernel_kit.cli.lint import mutations, required_keys
from portakernel_kit.cli.lint.required_keys import RequiredKeys
from portakernel_kit.cli.validate.problems import Problem
from portakernel_kit.conformance.mutation.mutation import Judged, Listed, Mutated, Mutation
from portakernel_kit.conformance.observing.observation import Finished

pytestmark = pytest.mark.usefixtures("forked_observers")

PLACE = "cpu:x86_64 (cpu)"
WIDENED = Mutation("widened", "torch.add", "x not float16", "x")
NARROW = Mutation("widened", "torch.add", "M <= 600", "M")
ELSEWHERE = Mutation("removed", "torch.add", "targets of amd", "target")
REMOVED = Mutation("removed", "torch.add", "x as float32", "x")
LISTED = Listed((WIDENED, NARROW, REMOVED, ELSEWHERE), PLACE)
ALL = [
    LISTED,
    Judged(WIDENED, "noticed", "check", "add[odd, x=float16] forward: sum: 3 of 9 elements differ"),
    Judged(NARROW, "would_have_worked", "lint", "correct in 2 of 2: add[M = 1200]"),
    Judged(REMOVED, "noticed", "lint", "x not float32: add[odd, x=float32] would have worked"),
    Judged(ELSEWHERE, "skipped", detail="no such device of amd is here"),
    Finished(),
]
HOLE = [Listed((WIDENED,), PLACE), Judged(WIDENED, "unnoticed", detail="no case of the kit shows it"), Finished()]


# --- on one plugin, as CI runs it ------------------------------------------------------------------------------------


def test_nothing_about_a_plugin_of_portakernels_own_goes_unnoticed(run: Callable) -> None:
    ran = run("lint --plugin torch --op rms_norm --mutate --device cpu --seed 7 --json")
    assert ran.status == 0, ran.out
    judged = [(one["kind"], one["verdict"]) for subject in ran.json["subjects"] for one in subject["mutations"]]
    assert {kind for kind, verdict in judged if verdict == "noticed"} == {"widened", "removed", "required"}
    assert ran.json["summary"]["unnoticed"] == 0
    assert {subject["left"] for subject in ran.json["subjects"]} == {0}


# --- what is printed and written, whatever was tried -----------------------------------------------------------------


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts these events in the place of what is tried of kernels; of manifests no key is taken away."""

    def replace(*events: Any) -> None:
        def mutate(_: object, kernels: Sequence[Any], **how: Any) -> Iterator[tuple[Mutated, Any]]:
            known = Mutated("torch.add")
            for event in events:
                if isinstance(event, BaseException):
                    raise event
                if isinstance(event, Listed):
                    known.listed, known.device = event.mutations, event.device
                if isinstance(event, Judged):
                    known.judged.append(event)
                yield known, event

        monkeypatch.setattr(mutations, "mutate", mutate)
        monkeypatch.setattr(RequiredKeys, "paths_of", lambda *_: [("plugin",)])

    return replace


def test_table_tells_who_noticed_what(run: Callable, tried: Callable) -> None:
    tried(*ALL)
    ran = run("lint --kernel torch.add --mutate --seed 7")
    assert ran.status == 0
    assert ran.out.splitlines() == [
        "",
        "torch: plugin.yaml",
        "  no longer there           by        what",
        "  plugin           noticed  validate  at line 1 of the copy: required key 'plugin' is missing",
        "",
        "torch.add on cpu:x86_64 (cpu)",
        "  no longer refused                     by     what",
        "  x not float16      noticed            check  add[odd, x=float16] forward: sum: 3 of 9 elements differ",
        "  M <= 600           would have worked  lint   correct in 2 of 2: add[M = 1200]",
        "  no longer claimed           by    what",
        "  x as float32       noticed  lint  x not float32: add[odd, x=float32] would have worked",
        "  1 skipped: no such device of amd is here",
        "",
        "Mutations, seed 7",
        "            noticed  would have worked  unnoticed  skipped",
        "  widened         1                  1          0        0",
        "  removed         1                  0          0        1",
        "  required        1                  0          0        0",
        "  would have worked: torch.add: M <= 600",
    ]
    assert run("lint --kernel torch.add --mutate --strict").status == 1


def test_json_form_key_by_key(run: Callable, tried: Callable, tmp_path: Path) -> None:
    tried(*ALL)
    ran = run("lint", "--kernel", "torch.add", "--mutate", "--seed", "7", "--json", "--output", str(tmp_path))
    assert list(ran.json) == ["circumstances", "seed", "interrupted", "summary", "subjects", "file"]
    assert ran.json["summary"] == {"noticed": 3, "would_have_worked": 1, "unnoticed": 0, "skipped": 1}
    of_file, of_kernel = ran.json["subjects"]
    assert (of_file["subject"], of_file["mutations"][0]["claim"]) == ("torch: plugin.yaml", "plugin")
    assert of_kernel["mutations"][0] == {
        "kind": "widened",
        "claim": "x not float16",
        "parameter": "x",
        "verdict": "noticed",
        "by": "check",
        "detail": "add[odd, x=float16] forward: sum: 3 of 9 elements differ",
    }
    assert {key: of_kernel[key] for key in ("device", "mode", "left")} == {"device": PLACE, "mode": None, "left": 0}
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("mutations-")
    assert ran.json == {**json.loads(path.read_text(encoding="utf-8")), "file": str(path)}


def test_what_goes_unnoticed_is_a_failure_that_is_told_last(run: Callable, tried: Callable) -> None:
    tried(*HOLE)
    ran = run("lint --kernel torch.add --mutate")
    assert ran.status == 1
    assert ran.out.splitlines()[-1] == "  unnoticed: torch.add: x not float16: no case of the kit shows it"


def test_an_interrupt_prints_and_writes_what_was_found_so_far(run: Callable, tried: Callable, tmp_path: Path) -> None:
    tried(*ALL[:2], KeyboardInterrupt())
    ran = run("lint", "--kernel", "torch.add", "--mutate", "--seed", "7", "--output", str(tmp_path))
    assert ran.status == 130
    assert "  3 not tried" in ran.out.splitlines()
    assert "Interrupted, seed 7" in ran.out.splitlines()
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text(encoding="utf-8"))["interrupted"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--plugin tritn", "unknown plugin 'tritn'; did you mean 'triton'?"),
        (
            "--plugin reference --op add",
            "reference has no manifest to change: what it claims follows from the ops' contracts; name a plugin that ",
        ),
        (
            "--plugin torch --seconds 5",
            "--seconds does not go with --mutate, which tries each mutation by itself; drop one\n",
        ),
        (
            "--plugin torch --no-claims",
            "--no-claims does not go with --mutate, which tries each mutation by itself; drop one\n",
        ),
    ],
)
def test_bad_input_is_told_with_the_way_out(run: Callable, arguments: str, message: str) -> None:
    ran = run(f"lint --mutate {arguments}")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"portakernel: {message}")


# --- required keys ---------------------------------------------------------------------------------------------------

MANIFEST = """\
schema_version: 1
plugin: acme
defaults:
  targets: {cpu: any}
kernels:
  - op: rms_norm
    entry: acme_for_cli_tests:rms_norm
    dtypes: {x: [float32], weight: [x]}
    check: {entry: "acme_for_cli_tests:few", reads: [N]}
    priority: [{when: {N: {max: 9}}, priority: 5}, {priority: 1}]
  - op: quantize_fp8
    entry: acme_for_cli_tests:quantize
    variants:
      - {targets: {cpu: {in: [any], not: [x86_64]}}, dtypes: {x: [float32], dtype: [float8_e5m2]}, formats: {q: [row]}}
"""


def required(install: Callable, manifest: str = MANIFEST) -> RequiredKeys:
    source = "def rms_norm(x, weight, *, eps=1e-6, out=None): ...\ndef few(N): ...\ndef quantize(x, *, out=None): ...\n"
    folder = install("acme", manifest=manifest, source=source)
    registry = runtime.dispatcher().registry
    package, _ = registry.manager.plugins["acme"]
    return RequiredKeys(package, "plugin", folder / "plugin.yaml", registry.spaces)


def test_each_key_that_a_manifest_must_have_is_missed_by_name_and_line(install: Callable) -> None:
    keys = required(install)
    judged = {one.mutation.claim: one for one in map(keys.judge, keys.paths())}
    assert {claim: (one.verdict, one.by) for claim, one in judged.items()} == dict.fromkeys(
        [
            "schema_version",
            "plugin",
            "kernels[0].op",
            "kernels[0].entry",
            "kernels[0].check.entry",
            "kernels[0].check.reads",
            "kernels[0].priority[0].priority",
            "kernels[0].priority[1].priority",
            "kernels[1].op",
            "kernels[1].entry",
            "kernels[1].variants[0].targets.cpu.in",
            "kernels[0].dtypes",
            "kernels[0].dtypes.x",
            "kernels[0].dtypes.weight",
            "kernels[1].variants[0].dtypes",
            "kernels[1].variants[0].dtypes.x",
            "kernels[1].variants[0].dtypes.dtype",
            "kernels[1].variants[0].formats",
            "kernels[1].variants[0].formats.q",
        ],
        ("noticed", "validate"),
    )
    assert judged["kernels[0].dtypes.weight"].detail.endswith(": lacks weight: x, weight each need their dtypes")


def test_targets_that_no_other_layer_has_are_required(install: Callable) -> None:
    keys = required(
        install,
        MANIFEST.replace("defaults:\n  targets: {cpu: any}\n", "").replace(
            "    dtypes: {x: [f", "    targets: {cpu: any}\n    dtypes: {x: [f", 1
        ),
    )
    judged = {one.mutation.claim: one for one in map(keys.judge, keys.paths())}
    assert judged["kernels[0].targets"].verdict == "noticed"
    assert judged["kernels[1].variants[0].targets"].verdict == "noticed"


def test_the_installed_manifest_is_left_as_it_is(install: Callable) -> None:
    keys = required(install)
    file = keys.package.folder / "plugin.yaml"
    for path in keys.paths():
        keys.judge(path)
    assert file.read_text(encoding="utf-8") == MANIFEST
    assert keys.data["plugin"] == "acme"


@pytest.mark.parametrize(
    ("told", "detail"),
    [
        ([], "validate finds nothing wrong"),
        ([(None, "plugin", "required key 'plugin' is missing")], "validate names neither key nor line: required key"),
        ([(3, None, "something is missing")], "validate names neither key nor line: something is missing"),
    ],
    ids=["nothing", "no line", "no key"],
)
def test_validation_that_does_not_see_or_say_it_is_found_out(
    install: Callable, monkeypatch: pytest.MonkeyPatch, told: list[Any], detail: str
) -> None:
    keys = required(install)

    def blind(subject: Any, _: object) -> list[Problem]:
        whole = "plugin: acme" in subject.file.read_text(encoding="utf-8")
        return [] if whole else [Problem(str(subject.file), *problem) for problem in told]

    monkeypatch.setattr(required_keys, "plugin_problems", blind)
    judged = keys.judge(("plugin",))
    assert judged.verdict == "unnoticed"
    assert judged.detail.startswith(detail)


@pytest.mark.parametrize("name", ["amd", "nvidia", "apple", "intel", "cpu"])
def test_each_key_that_a_backend_must_have_is_missed(name: str) -> None:
    registry = runtime.dispatcher().registry
    package, _ = registry.manager.backends[name]
    keys = RequiredKeys(package, "backend", package.folder / "backend.yaml", registry.spaces)
    paths = [path for path in keys.paths() if path[0] != "archs" or path[1] == next(iter(keys.data["archs"]))]
    assert len(paths) >= 6
    assert {keys.judge(path).verdict for path in paths} == {"noticed"}
