"""Digests of kernels' sources and of contracts: what changes them, and what does not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import fields, make_dataclass, replace
from pathlib import Path

import pytest

from portakernel.claims.capability import Capability
from portakernel.contract import Contract, Tolerance
from portakernel.contracts import contract, contracts
from portakernel.registry.kernel import Kernel, Priority, PriorityRule
from portakernel.registry.plugin_manager import Package
from portakernel.runtime import dispatcher
from portakernel.tuning import sources
from portakernel.tuning.sources import Reach, contract_digest, digest

FILES = {
    "__init__.py": '"""A plugin."""\n',
    "norm.py": 'from acme.launch import how\nfrom . import rows\n\n\ndef norm(x):\n    return how("norm" + x)\n',
    "soft.py": 'from acme.launch import how\n\n\ndef soft(x, form="a"):\n    return how(f"soft.{form}")\n',
    "gate.py": 'from acme.launch import how\n\n\ndef gate(x, op="gate"):\n    return how(f"{op}.forward")\n',
    "rows.py": 'from acme.launch import source\n\nNORM = source("norm.cu")\n',
    "late.py": 'ENTRY = "acme.soft:soft"\n\n\ndef late(x):\n    return ENTRY\n',
    "launch.py": '"""Launching."""\n\n\ndef how(name): ...\ndef source(name): ...\n',
    "plugin.yaml": "schema_version: 1\n",
    "table.yaml": (
        "# how\nnorm: [{warps: 4}]\nnorm_long: [{warps: 5}]\nsoft.a: [{as: shared}]\nsoft.b: [{warps: 1}]\n"
        "shared: [{warps: 2}]\ngate.forward: [{warps: 3}]\nnobody: [{warps: 9}]\n"
    ),
    "cuda/norm.cu": '#include "common.h"\n',
    "cuda/common.h": "// common\n",
    "cuda/lone.cu": "// lone\n",
    "README.md": "read\n",
}
ENTRIES = {"norm": "acme.norm:norm", "soft": "acme.soft:soft", "gate": "acme.gate:gate", "late": "acme.late:late"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "acme" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "acme"


def kernel(name: str, folder: Path | None, **more: object) -> Kernel:
    package = Package("acme", "acme", "acme-kernels", "1.0", folder)
    variants = (("", Capability(targets={}, dtypes={})),)
    made = Kernel(f"acme.{name}", "softmax", "acme", package, ENTRIES[name], variants, Priority((PriorityRule(1),)))
    return replace(made, **more)  # type: ignore[arg-type]


def digests(folder: Path) -> Mapping[str, str]:
    return {name: digest(kernel(name, folder)) for name in ENTRIES}


def changed(folder: Path, name: str, old: str, new: str) -> set[str]:
    """The kernels whose digest a change makes another."""
    before, path = digests(folder), folder / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return {name for name, now in digests(folder).items() if now != before[name]}


@pytest.mark.parametrize(
    ("file", "old", "new", "kernels"),
    [
        ("norm.py", "return", "return 1,", {"norm"}),
        ("soft.py", "return", "return 1,", {"soft", "late"}),  # reached by its name in a text
        ("rows.py", "NORM", "NORMS", {"norm"}),
        ("launch.py", "Launching", "Launched", {"norm", "soft", "gate", "late"}),
        ("table.yaml", "# how", "# how else", set()),
        ("table.yaml", "norm: [{warps: 4}]", "norm: [{warps: 8}]", {"norm"}),
        ("table.yaml", "norm_long: [{warps: 5}]", "norm_long: [{warps: 6}]", {"norm"}),  # by what begins it
        ("table.yaml", "soft.b: [{warps: 1}]", "soft.b: [{warps: 8}]", {"soft", "late"}),  # an f-string's
        ("table.yaml", "shared: [{warps: 2}]", "shared: [{warps: 8}]", {"soft", "late"}),  # by `as`
        (
            "table.yaml",
            "gate.forward: [{warps: 3}]",
            "gate.forward: [{warps: 8}]",
            {"gate"},
        ),  # what fills a gap is there
        ("table.yaml", "nobody: [{warps: 9}]", "nobody: [{warps: 8}]", {"norm", "soft", "gate", "late"}),
        ("cuda/norm.cu", "#include", "// x\n#include", {"norm"}),
        ("cuda/common.h", "common", "changed", {"norm"}),  # by a file that is reached
        ("cuda/lone.cu", "lone", "other", {"norm", "soft", "gate", "late"}),  # nobody names it: anybody may read it
        ("plugin.yaml", "1", "2", set()),
        ("README.md", "read", "write", set()),
    ],
)
def test_a_change_voids_the_kernels_that_reach_what_is_changed(folder, file, old, new, kernels):
    assert changed(folder, file, old, new) == kernels


def test_an_entry_of_the_manifest_that_names_another_function_is_another_source(folder):
    assert digest(kernel("norm", folder)) != digest(kernel("norm", folder, backward="acme.norm:backward"))


def test_versions_of_what_is_required_are_part_of_it_but_for_torch(folder, monkeypatch):
    plain = digest(kernel("norm", folder, requires={"torch": ">=2"}))
    assert plain == digest(kernel("norm", folder))
    needing = kernel("norm", folder, requires={"library": ">=1"}, distributions={"library": "acme-library"})
    found = {}
    for version in ("1.0", "1.1", None):
        monkeypatch.setattr(sources, "installed_version", lambda module, distribution, version=version: version)
        found[version] = digest(needing)
    assert len(set(found.values())) == 3


def test_a_plugin_without_files_has_its_distribution_s_version(folder):
    package = kernel("norm", None).package
    assert package is not None
    other = replace(package, version="1.1")
    assert digest(kernel("norm", None)) != digest(replace(kernel("norm", None), package=other))
    assert digest(kernel("norm", folder)) == digest(
        replace(kernel("norm", folder), package=replace(other, folder=folder))
    )


def test_every_kernel_here_has_a_digest_and_those_of_one_op_differ():
    registry = dispatcher().registry
    for op in registry.ops:
        found = {name: digest(one) for name, one in registry.kernels.items() if one.op == op}
        assert all(len(text) == 16 for text in found.values())
        functions = {(one.entry, one.backward, one.build) for one in registry.kernels.values() if one.op == op}
        assert len(set(found.values())) >= len(functions), op


def test_a_change_of_one_kernel_s_configurations_voids_those_of_no_other_op(tmp_path):
    kernels = {n: k for n, k in dispatcher().registry.kernels.items() if k.plugin == "triton"}
    package = next(iter(kernels.values())).package
    assert package is not None
    assert package.folder is not None
    shutil.copytree(package.folder, tmp_path / "triton")
    moved = replace(package, folder=tmp_path / "triton")
    before = {name: digest(replace(one, package=moved)) for name, one in kernels.items()}
    assert before == {name: digest(one) for name, one in kernels.items()}
    table = tmp_path / "triton" / "launching" / "configurations.yaml"
    text = table.read_text(encoding="utf-8")
    table.write_text(
        text.replace("\nsoftmax.forward:\n", "\nsoftmax.forward:\n  - {up_to: 2, warps: 1}\n"), encoding="utf-8"
    )
    after = {name: digest(replace(one, package=moved)) for name, one in kernels.items()}
    assert {name for name in kernels if before[name] != after[name]} == {"triton.softmax", "triton.softmax_parts"}


def test_inductor_s_kernels_are_made_of_the_op_s_formula():
    one = dispatcher().registry.kernels["inductor.rms_norm"]
    assert one.package is not None
    assert Reach(one.package, (one.entry,)).uses("reference_module")
    assert digest(one) != digest(replace(one, op="softmax"))


def test_a_contract_s_digest_is_of_its_meaning():
    known = contract("rms_norm")
    same = replace(known, summary="x", formula="y", source="z", notes="n", cases=(), grid=None)
    assert contract_digest(same) == contract_digest(known)
    assert contract_digest(replace(known, tolerance=Tolerance({"float32": 1.0}))) != contract_digest(known)
    assert contract_digest(replace(known, requirements=("N % 2 == 0",))) != contract_digest(known)
    assert len({contract_digest(each) for each in contracts().values()}) == len(contracts())


def test_a_field_that_contracts_learn_to_have_leaves_those_that_do_not_use_it():
    known = contract("rms_norm")
    later = make_dataclass("Contract", [("later", str, "")], bases=(Contract,), frozen=True, eq=False)
    said = {field.name: getattr(known, field.name) for field in fields(known)}
    assert contract_digest(later(**said)) == contract_digest(known)
    assert contract_digest(later(**said, later="used")) != contract_digest(known)
