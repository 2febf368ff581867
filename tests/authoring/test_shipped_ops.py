"""Ops that another distribution ships: found like portakernel's own, or refused with the place; nobody else suffers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from portakernel.registry.plugin_manager import Package
from portakernel.runtime import dispatcher
from portakernel_kit.cli.validate.entry_imports import import_contracts
from portakernel_kit.scaffold import scaffold

# Each word of its arguments is a command's; what it tells is how each ended, and its output.
IN_TURN = """
import contextlib, io, json, sys
from portakernel.cli import main
told = []
for command in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = main(command.split())
    told.append([status, output.getvalue()])
print(json.dumps(told))
"""


def broken(found: Any) -> list[str]:
    return [fault["reason"] for fault in found["broken"] if "demo" in fault["name"]]


def test_every_command_knows_it(site, run):
    site()
    assert {kernel["kernel"] for kernel in run("list", "--op", "demo_scan", "--json")["kernels"]} == {
        "demo_scan.demo_scan",
        "inductor.demo_scan",  # which makes a candidate of any op's formula
        "reference.demo_scan",
    }
    sources = {k["kernel"]: k["source"]["distribution"] for k in run("list", "--op", "demo_scan", "--json")["kernels"]}
    own = "portakernel-demo-scan"
    assert sources == {"demo_scan.demo_scan": own, "inductor.demo_scan": "portakernel", "reference.demo_scan": own}
    explained = run("explain", "demo_scan", "--target", "h100", "--dtype", "bfloat16", "--shape", "x=4x8", "--json")
    assert explained["chosen"] == "demo_scan.demo_scan"
    assert '"op": "demo_scan"' in json.dumps(run("matrix", "--json"))
    for plugin in ("demo_scan", "reference"):
        checked = run("check", "--op", "demo_scan", "--plugin", plugin, "--device", "cpu", "--budget", "0.5s")
        assert re.search(rf"\n  {plugin}.demo_scan +\d\d+ +0 ", checked)
    assert "no problems" in run("validate")
    measured = run("bench", "demo_scan", "--device", "cpu", "--launch", "--plugin", "demo_scan", "--json")
    assert [cell["case"] for cell in measured["launches"]] == ["4×256"]


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("contract.py", 'op="demo_scan"', 'op="softmax"', "the op 'softmax' is portakernel's own; give yours another"),
        ("contract.py", 'op="demo_scan"', 'op="Demo scan"', "op 'Demo scan' is no name for an op; write lower-case"),
        ("contract.py", 'op="demo_scan"', 'op="class"', "op 'class' is no name for an op: it is a word of Python; add"),
        ("contract.py", 'TensorArgument("x", ("*M", "N")', 'TensorArgument("x", ("*M", "N//2")', "'N//2' is no size;"),
        ("contract.py", 'TensorArgument("x", ("*M", "N"), ("float32"', 'TensorArgument("x", ("*M", "N"), ("float"',
         "tensor x: unknown dtype 'float'; did you mean"),
        ("contract.py", 'TensorArgument("x"', 'TensorArgument("lambda"', "argument 'lambda' is no name for one;"),
        ("contract.py", "CONTRACT = Contract(", "WAS = Contract(", "contract has nothing called 'CONTRACT'"),
        ("contract.py", "CONTRACT = Contract(", "CONTRACT = dict(", "is a dict; name a portakernel.authoring.Contract"),
        ("contract.py", "import annotations\n", "import annotations\nraise OSError('no')\n", "CONTRACT failed: OSEr"),
        ("contract.py", '{"x": (64, 4096)}', '{"y": (64, 4096)}', "grid row '64×4096': unknown 'y'; known: x"),
        ("contract.py", '{"N": 33}', '{"n": 33}', "case 'rows': unknown 'n'; known: M, N"),
        ("contract.py", 'gradient="kernel"', 'gradient="kernle"', "gradient: unknown 'kernle'; did you mean 'kernel'"),
        ("contract.py", '{"x": "sliced"}', '{"x": "slicd"}', "case 'sliced rows': layouts, x: unknown 'slicd'; "),
        ("contract.py", '{"N": 33}', '{"N": 33}, values="tny"', "case 'rows': values: unknown 'tny'; did "),
        ("contract.py", '{"N": 33})', '33)', "CONTRACT cannot be read as a contract: TypeError: "),
        ("contract.py", "cost=cost", "cost=lambda: 3", "cost cannot be called with its three arguments, (dims"),
        ("contract.py", "cost=cost", "cost=3", "cost is 3; give a function that takes (dims, itemsizes, values)"),
        ("contract.py", '{"float32": 16.0,', '{"float32": -1.0,', "tolerance, forward, float32: -1.0 is no num"),
        ("contract.py", '{"float32": 16.0, "float16": 1.0,', '{"float32": 16.0,', "forward: none for float16, which y"),
        ("reference.py", "def forward(x: Tensor, *,", "def forward(*,", "reference.forward does not take x; for demo"),
        ("reference.py", "def forward(x: Tensor, *,", "def forward(x, z, *,", "reference.forward needs z, wh"),
        ("reference.py", "def backward(grad_y: Tensor, *,", "def backward(grad_y, more, *,", "backward needs mo"),
        ("reference.py", "def forward(x: Tensor, *,", "def forward(x, *, by,", "reference.forward needs by, which n"),
        ("reference.py", "def magnitudes(", "def sizes(", "the reference is not whole: portakernel_demo_scan.refer"),
    ],
)  # fmt: skip
def test_what_cannot_be_an_op_is_refused_with_its_place_and_nobody_else_suffers(site, run, file, old, new, said):
    folder = site(changes={file: (old, new)})
    commands = ("doctor --json", "validate --json", "explain softmax --dtype float32 --json")
    statuses, outputs = zip(*json.loads(run("-c", IN_TURN, *commands)), strict=True)
    assert statuses == (1, 1, 0)
    diagnosis, validated, explained = map(json.loads, outputs)
    (reason, *_) = broken(diagnosis)
    assert re.search(r"plugin\.yaml:9: ops\[0\]: ", reason)
    assert said in reason
    assert f"{folder.name}" in reason
    assert any(problem["line"] == 9 and said in problem["text"] for problem in validated["problems"])
    assert not any("no op here is called" in finding["what"] for finding in diagnosis["findings"])
    # what was wrong with the op is not told once more of its kernels, unless to refer to it
    unknown = [problem["text"] for problem in validated["problems"] if "unknown op" in problem["text"]]
    assert all(text.endswith("; mend ops[0] first, which may be it") for text in unknown)
    if file == "reference.py":
        assert unknown == []
    assert explained["chosen"].startswith("torch.")


def test_a_kernel_that_needs_more_than_its_op_gives_is_refused_with_its_place(site, run):
    site(changes={"kernel.py": ("def demo_scan(x: Tensor, *,", "def demo_scan(x, y, z=0, *, by,")})
    (problem,) = run("validate", "--json", status=1)["problems"]
    assert (problem["line"], problem["key"]) == (13, "kernels[0].entry")
    assert problem["text"] == (
        "portakernel_demo_scan.kernel.demo_scan needs y, by, which nothing gives it; "
        "a kernel takes what its op does: demo_scan(x, *, out=None, kernel=None)"
    )


def test_validate_says_that_a_contract_ends_its_process_and_goes_on(site, run):
    folder = site(changes={"contract.py": ("import annotations\n", "import annotations\nimport os\nos._exit(3)\n")})
    found = run("validate", str(folder), "--json", status=1)
    text = "ops[0]: importing portakernel_demo_scan.contract:CONTRACT ended its process with status 3; "
    assert [(p["line"], f"{p['key']}: {p['text']}") for p in found["problems"]][:1] == [
        (9, f"{text}a module must not end the program")
    ]


def test_contracts_are_waited_for_within_a_bound_and_one_that_ends_the_process_hides_no_other(tmp_path):
    modules = {"slow": "import time\ntime.sleep(60)\nC = 1\n", "deadly": "import os\nos._exit(5)\n", "fine": "C = 1\n"}
    for name, text in {"__init__": "", **modules}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    folder = tmp_path.rename(tmp_path.with_name("waited_for"))
    package = Package("waited", "waited_for", "waited", "1.0", folder)
    found = import_contracts(package, [f"waited_for.{name}:C" for name in ("slow", "deadly", "fine")], 1.0)
    assert found.deadly == {
        "waited_for.slow:C": "importing waited_for.slow:C takes longer than 1 s; "
        "do at the first call what takes so long",
        "waited_for.deadly:C": "importing waited_for.deadly:C ended its process with status 5; "
        "a module must not end the program",
    }
    assert found.loading_torch == frozenset()


def test_validate_names_a_contract_that_loads_torch(site, run):
    folder = site(changes={"contract.py": ("import annotations\n", "import annotations\nimport torch\n")})
    (problem,) = run("validate", str(folder), "--json", status=1)["problems"]
    text = "torch became loaded by importing the contract's module; import it in the reference alone"
    assert (problem["line"], problem["key"], problem["text"]) == (9, "ops[0].contract", text)


def test_a_reference_that_cannot_be_imported_is_named_by_validate_with_imports_and_by_doctor(site, run):
    folder = site(changes={"reference.py": ("import torch\n", "import torch, nosuchthing\n")})
    assert run("validate", str(folder), "--json")["ok"]
    (problem,) = run("validate", str(folder), "--imports", "--json", status=1)["problems"]
    raised = (
        "importing portakernel_demo_scan.reference:forward raised ModuleNotFoundError: No module named 'nosuchthing'"
    )
    assert (problem["file"], problem["line"]) == (str(folder / "reference.py"), 5)
    assert problem["text"] == f"{raised}; import what may be missing where it is used"
    assert broken(run("doctor", "--json", status=1)) == [raised]


def test_of_two_that_ship_one_op_neither_does(site, run):
    site()
    site("demo_other", {"contract.py": ('op="demo_other"', 'op="demo_scan"')})
    reasons = broken(run("doctor", "--json", status=1))
    assert len([reason for reason in reasons if "the op 'demo_scan' is shipped by" in reason]) == 2


def project(folder: Path, name: str, distribution: str, kernel: str) -> Path:
    """A project that is not installed, whose plugin has one more kernel than others; its folder."""
    module = folder / "src" / f"portakernel_{name}"
    module.mkdir(parents=True)
    (module / "__init__.py").touch()
    (module / "kernel.py").write_text("def scan(x, *, exclusive=False, out=None): ...\n", encoding="utf-8")
    (module / "plugin.yaml").write_text(f"schema_version: 1\nplugin: {name}\nkernels:\n  - {kernel}\n", "utf-8")
    entry = f'[project.entry-points.portakernel]\n{name} = "portakernel_{name}"\n'
    text = f'[project]\nname = "{distribution}"\nversion = "0.2.0"\n{entry}'
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


OTHERS_KERNEL = "{op: demo_scan, entry: portakernel_fast.kernel:scan, targets: {cpu: any}, dtypes: {x: [float32]}}"


def test_a_package_may_have_kernels_for_an_op_that_another_one_ships(site, run, tmp_path):
    folder = project(tmp_path / "fast", "fast", "fast-scans", OTHERS_KERNEL)
    (alone,) = run("validate", str(folder), "--json", status=1)["problems"]
    known = len(dispatcher().registry.ops)
    assert alone["text"] == f"unknown op 'demo_scan'; {known} are known, none of them close"
    site()
    found = run("validate", str(folder), "--json")
    assert found["problems"] == []
    manifest = folder / "src" / "portakernel_fast" / "plugin.yaml"
    assert run("validate", str(manifest), "--json")["problems"] == []
    misspelt = manifest.read_text(encoding="utf-8").replace("op: demo_scan", "op: brew_tea")
    manifest.write_text(misspelt, encoding="utf-8")
    (told,) = run("validate", str(folder), "--json", status=1)["problems"]
    assert told["text"] == f"unknown op 'brew_tea'; {known + 1} are known, none of them close"
    assert "unknown op" in run("validate", str(folder), status=1, PORTAKERNEL_DISABLE="demo_scan")


def test_of_two_projects_one_may_have_kernels_for_the_other_s_op_in_either_order(run, tmp_path):
    fast = project(tmp_path / "fast", "fast", "fast-scans", OTHERS_KERNEL)
    ships = scaffold("op", "demo_scan", tmp_path, dispatcher().registry).folder
    for order in ((fast, ships), (ships, fast)):
        assert run("validate", *map(str, order), "--json")["problems"] == []


def test_a_project_of_which_a_copy_is_installed_is_the_one_that_is_judged(site, run, tmp_path):
    module = site()
    folder = tmp_path / "demo_scan"
    shutil.copytree(module, folder / "src" / module.name)
    assert run("validate", str(folder), "--json")["problems"] == []
    pyproject = folder / "pyproject.toml"
    pyproject.write_text(
        pyproject.read_text(encoding="utf-8").replace("portakernel-demo-scan", "Portakernel.Demo_scan")
    )
    assert run("validate", str(folder), "--json")["problems"] == []
    contract = folder / "src" / module.name / "contract.py"
    contract.write_text(contract.read_text(encoding="utf-8").replace('{"N": 33}', '{"rows": 33}'), encoding="utf-8")
    (told,) = run("validate", str(folder), "--json", status=1)["problems"]
    assert told["text"] == "case 'rows': unknown 'rows'; known: M, N"
    pyproject.write_text(pyproject.read_text(encoding="utf-8").replace("Portakernel.Demo_scan", "demo-scans"))
    found = run("validate", str(folder), "--json", status=1)
    taken = (
        "the name 'demo_scan' is taken by demo_scan (portakernel-demo-scan 0.1.0); choose another, in the manifests too"
    )
    assert [problem["text"] for problem in found["problems"]] == [taken, told["text"]]
    assert [(checked["kind"], checked["problems"]) for checked in found["checked"]] == [("plugin", 1), ("project", 1)]


def test_switched_off_it_takes_its_op_away(site, run):
    site()
    told = run("explain", "demo_scan", status=2, PORTAKERNEL_DISABLE="demo_scan")
    assert "unknown op 'demo_scan'" in told


def test_an_entry_for_an_op_that_nobody_has_rests_and_its_plugin_lives(site, run):
    folder = site()
    manifest = folder / "plugin.yaml"
    extra = "  - {op: brew_tea, entry: portakernel_demo_scan.kernel:brew_tea, targets: {cpu: any}}\n"
    manifest.write_text(manifest.read_text(encoding="utf-8") + extra, encoding="utf-8")
    found = run("doctor", "--json")
    (finding,) = [finding for finding in found["findings"] if "brew_tea" in finding["what"]]
    assert finding["state"] == "attention"
    assert re.search(r"plugin\.yaml:\d+: kernels\[1\]\.op: no op here is called 'brew_tea'", finding["what"])
    assert finding["action"] == "upgrade portakernel, or install what ships the op"
    assert broken(found) == []
    assert run("explain", "demo_scan", "--dtype", "float32", "--json")["chosen"] == "demo_scan.demo_scan"
    assert any("brew_tea" in problem["text"] for problem in run("validate", "--json", status=1)["problems"])


BUILD = """
BUILT = []


def build(request, tensors, values):
    BUILT.append(request.op)


def demo_scan"""


def test_a_warm_up_that_is_a_process_s_first_act_builds_its_kernels(site, run):
    folder = site(changes={"kernel.py": ("\n\ndef demo_scan", BUILD)})
    manifest = folder / "plugin.yaml"
    text = manifest.read_text(encoding="utf-8").replace("priority: 10", f"build: {folder.name}.kernel:build")
    manifest.write_text(text, encoding="utf-8")
    code = f"""
import torch, portakernel
warm = portakernel.warmup(lambda: portakernel.ops.demo_scan(torch.ones(2, 3)))
from {folder.name} import kernel
print(set(kernel.BUILT), [call.kernel for call in warm.calls])
"""
    built = "{'demo_scan'} ['demo_scan.demo_scan']\n"
    assert run("-c", code, PORTAKERNEL_DENY="inductor,reference") == built


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("portakernel.explain('demo_scan', x).chosen.name", "demo_scan.demo_scan"),
        ("portakernel.explain('demo_scan', target='h100', dtype='float32').chosen.name", "demo_scan.demo_scan"),
        ("portakernel.bind('demo_scan', x)(x).tolist()", "[[1.0, 2.0, 3.0]]"),
        ("portakernel.warmup('demo_scan', x, kernel='demo_scan').calls[0].kernel", "demo_scan.demo_scan"),
        ("portakernel.warmup([call]).calls[0].kernel", "demo_scan.demo_scan"),
        ("'demo_scan' in dir(portakernel.ops)", "True"),
    ],
)
def test_whatever_a_process_asks_first_knows_it(site, run, asked, said):
    site()
    code = f"""
import torch, portakernel
x = torch.ones(1, 3)
call = portakernel.Call("demo_scan", dtype="float32", shape={{"x": (1, 3)}}, kernel="demo_scan.demo_scan")
print({asked})
"""
    assert run("-c", code) == f"{said}\n"


def test_a_list_of_calls_to_warm_up_may_name_it(site, run, tmp_path):
    site()
    calls = tmp_path / "calls.yaml"
    calls.write_text("calls:\n- {op: demo_scan, dtype: float32, shape: {x: [4, 8]}, kernel: demo_scan}\n", "utf-8")
    # 1: there was nothing to build
    told = run("warmup", "--calls", str(calls), "--json", status=1)
    assert [call["kernel"] for call in told["calls"]] == ["demo_scan.demo_scan"]


def test_a_call_to_warm_up_may_be_the_first_to_name_it(site, run):
    site()
    command = "warmup demo_scan --shape x=4x8 --dtype float32 --kernel demo_scan --training --json"
    told = run(*command.split(), status=1)  # 1: there was nothing to build
    assert {call["kernel"] for call in told["calls"]} == {"demo_scan.demo_scan"}


def test_a_registry_of_packages_that_do_not_ship_it_has_neither_op_nor_kernels(site, run):
    site()
    code = """
from portakernel.registry.plugin_manager import PluginManager, installed_packages
from portakernel.registry.registry import Registry
from portakernel.matrix.table import support_matrix
from portakernel.runtime import dispatcher
everyone, ours = dispatcher().registry, Registry(PluginManager([p for p in installed_packages() if p.first_party]))
for registry in (everyone, ours):
    supports = [support.op for support in support_matrix(registry)]
    print("demo_scan" in registry.ops, sum(kernel.op == "demo_scan" for kernel in registry.kernels.values()))
    print("demo_scan" in supports, supports == list(registry.ops))
"""
    assert run("-c", code) == "True 3\nTrue True\nFalse 0\nFalse True\n"


def test_the_pages_of_this_repository_do_not_speak_of_it(site, run):
    site()
    code = """
import sys
from portakernel.runtime import dispatcher
from portakernel_pages import generate
assert "demo_scan" in dispatcher().registry.ops
sys.argv[1:] = ["--check"]
sys.exit(generate.main())
"""
    assert run("-c", code) == ""


def test_a_process_without_any_pays_nothing():
    code = "import sys, portakernel.ops, portakernel.runtime as r; r.dispatcher(); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
