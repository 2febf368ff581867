"""YAML that a stranger wrote: plain data within bounds, or an error that names file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from portakernel.errors import ManifestError
from portakernel.manifest.yaml_file import MAX_ALIASES, MAX_BYTES, MAX_DEPTH, MAX_NODES, Document, read_yaml

Read = Callable[[str | bytes], Document]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(content: str | bytes) -> Document:
        path = tmp_path / "plugin.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_yaml(path, shown_as="plugin.yaml")

    return read


def refused(read: Read, content: str | bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        read(content)
    assert caught.value.path == "plugin.yaml"
    assert caught.value.problems == (str(caught.value),)
    return str(caught.value)


def test_scalars_are_what_all_versions_of_yaml_say_and_dates_stay_text(read):
    text = "a: 1\nb: -2.5\nc: true\nd: null\ne:\nf: '1'\ng: 1e-6\nh: 2026-01-02\ni: 1.0e-6\nj: 0\nk: .inf\nl: sm_90\n"
    assert read(text).data == {
        "a": 1,
        "b": -2.5,
        "c": True,
        "d": None,
        "e": None,
        "f": "1",
        "g": "1e-6",
        "h": "2026-01-02",
        "i": 1e-6,
        "j": 0,
        "k": float("inf"),
        "l": "sm_90",
    }


def test_data_is_what_the_safe_loader_gives(read):
    text = "a: [1, {b: two}, [three, 4.0]]\nc:\n  - d: {e: ''}\n  - |\n    lines\n    more\n"
    assert read(text).data == yaml.safe_load(text)


def test_every_key_and_item_has_its_line(read):
    document = read("# first\na: 1\nb:\n  - x\n  - c: 2\n    d:\n      - e\n")
    lines = {("a",): 2, ("b",): 3, ("b", 0): 4, ("b", 1): 5, ("b", 1, "c"): 5, ("b", 1, "d"): 6, ("b", 1, "d", 0): 7}
    assert {path: document.line(path) for path in lines} == lines


def test_a_path_that_is_not_there_has_the_line_of_the_nearest_key_around_it(read):
    document = read("a: 1\nb:\n  c: 2\n")
    assert document.line(("b", "missing", 3)) == 2
    assert document.line(("missing",)) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "plugin.yaml:3: key 'a' is a duplicate of the one in line 1"),
        ("a:\n  b: 1\n  c: 2\n  b: 1\n", "plugin.yaml:4: key 'b' is a duplicate of the one in line 2"),
        ("a: {b: 1, b: 2}\n", "plugin.yaml:1: key 'b' is a duplicate of the one in line 1"),
        ("1: a\n\n+1: b\n", "plugin.yaml:3: key 1 is a duplicate of the one in line 1"),
        ("'a': 1\n\"a\": 2\n", "plugin.yaml:2: key 'a' is a duplicate of the one in line 1"),
    ],
)
def test_a_duplicate_key_is_refused_with_the_line_of_the_first(read, content, message):
    assert refused(read, content) == message


@pytest.mark.parametrize("content", ["1: a\ntrue: b\n", "1: a\n1.0: b\n", "false: a\n0: b\n"])
def test_keys_that_python_holds_equal_are_duplicates_too(read, content):
    assert refused(read, content).startswith("plugin.yaml:2: key ")


@pytest.mark.parametrize(
    ("content", "tag"),
    [
        ("ok: 1\na: !!str 5\n", "tag:yaml.org,2002:str"),
        ("ok: 1\na: !!binary aGk=\n", "tag:yaml.org,2002:binary"),
        ("ok: 1\na: !mine 5\n", "!mine"),
        ("ok: 1\na: ! 5\n", "!"),
        ("ok: 1\na: !!python/object:os.system [x]\n", "tag:yaml.org,2002:python/object:os.system"),
        ("ok: 1\na: !!python/object/apply:os.system ['true']\n", "tag:yaml.org,2002:python/object/apply:os.system"),
        ("ok: 1\na: !!set {b}\n", "tag:yaml.org,2002:set"),
        ("ok: 1\n!!str a: 5\n", "tag:yaml.org,2002:str"),
    ],
)
def test_a_tag_is_refused(read, content, tag):
    assert refused(read, content).startswith(f"plugin.yaml:2: tag {tag!r} is not accepted; ")


def test_an_alias_stands_for_its_value(read):
    assert read("a: &a [1, 2]\nb: *a\nc: {d: *a}\n").data == {"a": [1, 2], "b": [1, 2], "c": {"d": [1, 2]}}


def test_an_alias_bomb_is_refused_before_it_expands(read):
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 7)]
    message = refused(read, "\n".join(["l0: &l0 [x, x, x, x, x, x, x, x, x]", *levels]))
    assert message == f"plugin.yaml:5: expands to more than {MAX_NODES} values"


def test_a_bomb_of_keys_is_refused_too(read):
    levels = [f"l{i}: &l{i} {{{', '.join(f'k{j}: *l{i - 1}' for j in range(9))}}}" for i in range(1, 7)]
    message = refused(read, "\n".join(["l0: &l0 {a: 1, b: 2, c: 3, d: 4}", *levels]))
    assert message.endswith(f": expands to more than {MAX_NODES} values")


def test_aliases_are_counted(read):
    most = "a: &a 1\nb: [" + ", ".join(["*a"] * MAX_ALIASES)
    assert read(most + "]\n").data["b"] == [1] * MAX_ALIASES
    assert refused(read, most + ", *a]\n") == f"plugin.yaml:2: uses more than {MAX_ALIASES} aliases"


def test_values_are_counted(read):
    assert (
        refused(read, "- x\n" * (MAX_NODES + 1))
        == f"plugin.yaml:{MAX_NODES + 1}: expands to more than {MAX_NODES} values"
    )


def test_an_alias_that_is_inside_what_it_stands_for_is_refused(read):
    assert refused(read, "a: 1\nb: &b [*b]\n") == "plugin.yaml:2: alias *b has no anchor before it"


def test_an_alias_without_an_anchor_is_refused(read):
    assert refused(read, "a: 1\nb: *c\n") == "plugin.yaml:2: alias *c has no anchor before it"


def test_merge_keys_are_refused(read):
    message = "plugin.yaml:3: merge keys (<<) are not accepted; a plugin.yaml has `defaults:` instead"
    assert refused(read, "a: &a {x: 1}\nb:\n  <<: *a\n") == message


@pytest.mark.parametrize("byte", [b"a: 1\n", b"#", b" "])
def test_a_file_of_2_mb_is_refused_for_its_size(read, byte):
    content = byte * (2 * MAX_BYTES // len(byte))
    assert refused(read, content) == f"plugin.yaml: has {len(content)} bytes; at most {MAX_BYTES} are accepted"


def test_a_file_of_the_greatest_size_is_read(read):
    assert read(b"a: 1\n#" + b"x" * (MAX_BYTES - 6)).data == {"a": 1}


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ("{a: ", "}")])
def test_nesting_is_bounded(read, begin, end):
    data = read(begin * MAX_DEPTH + "1" + end * MAX_DEPTH).data
    for _ in range(MAX_DEPTH):
        data = data[0] if isinstance(data, list) else data["a"]
    assert data == 1
    for depth in (MAX_DEPTH + 1, 100_000):
        message = f"plugin.yaml:1: is nested deeper than {MAX_DEPTH} levels"
        assert refused(read, begin * depth + "1" + end * depth) == message


def test_several_documents_are_refused(read):
    assert refused(read, "a: 1\n---\nb: 2\n") == "plugin.yaml:2: holds several documents; one is accepted"


def test_one_document_may_have_its_marks(read):
    assert read("%YAML 1.1\n---\na: 1\n...\n").data == {"a": 1}


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"a: 1\nb: \xff\n", 2), (b"a: caf\xe9\n", 1), ("a: 1\n".encode("utf-16"), 1)],
)
def test_what_is_not_utf_8_is_refused_with_its_line(read, content, line):
    assert refused(read, content).startswith(f"plugin.yaml:{line}: is not UTF-8: ")


def test_a_byte_order_mark_is_no_part_of_the_first_key(read):
    document = read("\ufeffa: 1\n".encode())
    assert document.data == {"a": 1}
    assert document.line(("a",)) == 1


@pytest.mark.parametrize("content", ["", "\n\n", "# a comment\n", "---\n"])
def test_an_empty_file_holds_nothing(read, content):
    assert read(content).data is None


@pytest.mark.parametrize("content", ["ok: 1\n? [a, b]\n: 1\n", "ok: 1\n{a: 1}: 2\n", "ok: &x [1]\n*x : 2\n"])
def test_a_key_is_a_plain_scalar(read, content):
    assert refused(read, content) == "plugin.yaml:2: a key must be a plain scalar"


@pytest.mark.parametrize(
    "number",
    ["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "0b" + "1" * 50_000, "0" + "7" * 10_000, "1" + ":1" * 5000],
    ids=["decimal", "negative", "hexadecimal", "binary", "octal", "sexagesimal"],
)
def test_a_number_too_long_to_print_is_refused_with_its_line(read, number):
    """Python refuses to print it, so that the first message about it would be the one that fails."""
    message = refused(read, f"ok: 1\na: {number}\n")
    assert message.startswith(f"plugin.yaml:2: '{number[:40]}…' is not a")


def test_a_float_too_great_is_refused_with_its_line(read):
    assert refused(read, f"ok: 1\na: 1{':1' * 5000}.5\n").startswith("plugin.yaml:2: ")


def test_a_number_too_long_for_a_key_is_refused(read):
    assert refused(read, f"ok: 1\n? 0x{'f' * 5000}\n: 1\n").startswith("plugin.yaml:2: ")


@pytest.mark.parametrize("text", ["0b_", "0x_"])
def test_what_looks_like_a_number_and_is_none_is_refused(read, text):
    assert refused(read, f"ok: 1\na: {text}\n").startswith(f"plugin.yaml:2: {text!r} is not a")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("ok: 1\na: [1, 2\n", 3),
        ("ok: 1\na: b: c\n", 2),
        ("ok: 1\n\ta: 1\n", 2),
        ("ok: 1\na: 'x\n", 3),
        ("ok: 1\na: @x\n", 2),
    ],
    ids=["bracket", "two colons", "tab", "quote", "reserved"],
)
def test_what_is_not_yaml_is_refused_with_its_line(read, content, line):
    assert refused(read, content).startswith(f"plugin.yaml:{line}: is not valid YAML: ")


@pytest.mark.parametrize("character", ["\x00", "\x01", "\x7f"])
def test_control_characters_are_refused_with_their_line(read, character):
    assert refused(read, f"ok: 1\na: {character}b\n").startswith("plugin.yaml:2: is not valid YAML: ")


def test_what_cannot_be_opened_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ManifestError) as caught:
        read_yaml(tmp_path / "none.yaml", shown_as="none.yaml")
    assert str(caught.value) == "none.yaml: cannot be read: No such file or directory"
    with pytest.raises(ManifestError) as caught:
        read_yaml(tmp_path, shown_as="folder")
    assert str(caught.value) == "folder: is a folder; a regular file is accepted"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("012", "'012' is no decimal number, and 10 in YAML 1.1; write 10, or quote it"),
        ("1:30", "'1:30' is no decimal number, and 90 in YAML 1.1; write 90, or quote it"),
        ("1:30.5", "'1:30.5' is no decimal number, and 90.5 in YAML 1.1; write 90.5, or quote it"),
        ("0b11", "'0b11' is no decimal number, and 3 in YAML 1.1; write 3, or quote it"),
        ("0x10", "'0x10' is no decimal number, and 16 in YAML 1.1; write 16, or quote it"),
        ("1_000", "'1_000' is no decimal number, and 1000 in YAML 1.1; write 1000, or quote it"),
        ("1_0.5", "'1_0.5' is no decimal number, and 10.5 in YAML 1.1; write 10.5, or quote it"),
        ("-017", "'-017' is no decimal number, and -15 in YAML 1.1; write -15, or quote it"),
        ("0o17", "'0o17' is text in YAML 1.1 and a number in 1.2; write a decimal number, or quote it"),
        ("08", "'08' is text in YAML 1.1 and a number in 1.2; write a decimal number, or quote it"),
        ("no", "'no' is false in YAML 1.1 and text in 1.2; write false, or quote it"),
        ("Yes", "'Yes' is true in YAML 1.1 and text in 1.2; write true, or quote it"),
        ("on", "'on' is true in YAML 1.1 and text in 1.2; write true, or quote it"),
        ("OFF", "'OFF' is false in YAML 1.1 and text in 1.2; write false, or quote it"),
    ],
)
def test_what_versions_of_yaml_read_differently_is_refused_and_as_text_accepted(read, text, message):
    assert refused(read, f"a:\n  - {text}\n") == f"plugin.yaml:2: {message}"
    assert refused(read, f"{text}: a\n") == f"plugin.yaml:1: {message}"
    assert read(f"a: '{text}'\n").data == {"a": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("+7", 7),
        ("1.50", 1.5),
        (".5", 0.5),
        ("1.e+3", 1000.0),
        ("-.inf", float("-inf")),
        ("TRUE", True),
    ],
)
def test_decimal_numbers_and_true_and_false_are_what_they_say(read, text, value):
    assert read(f"a: {text}\n").data == {"a": value}
