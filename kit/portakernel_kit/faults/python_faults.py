"""Every fault of a Python file, Triton's kernels included, and how many are left out by a rule."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from portakernel_kit.faults.changes import CHANGES, Change, Scope
from portakernel_kit.faults.fault import Fault, Place, numbered
from portakernel_kit.faults.source_text import SourceText

# Why faults are left out that cannot change a result, or that no request here could show.
TUNING = "how a kernel is tiled or cached: its results stay"
HUGE = "the width of an index: shows beyond 2**31 elements, for which there is `portakernel check --huge`"
TEXT = "what is said to people: errors, warnings, logs, __repr__"
ASSERTED = "an assertion left out: what holds stays so"
_TUNING = re.compile(
    r"(?i)(num_)?(warps?|stages|ctas|threads|buffers)|.*block(_?size)?(_[a-z0-9]+)?|maxnreg|waves_per_eu|.*cache"
    r"(_modifier|_size)?|eviction_policy|maxsize|encoding|num_programs|unroll|loop_unroll_factor|flatten|volatile|.*_per_program"
)
_LOGGING = re.compile(r"(.*\.)?(warn|warning|debug|info|error|exception|log|print|static_print|device_print)")
_ASSERTING = re.compile(r"(.*\.)?(static|device)_assert")
_SPOKEN = frozenset(("__repr__", "__str__", "__doc__", "__all__"))
_WIDE = frozenset(("int64", "int32", "uint64"))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_faults(content: bytes, file: str) -> tuple[list[Fault], Counter[str]]:
    """The faults of a module's text, in its order, each of which is valid Python; those left out, by rule.

    Raises:
        SyntaxError: it is no Python.
    """
    finder = _Finder(SourceText(content), file)
    finder.visit(ast.parse(content))
    faults = sorted(finder.found, key=lambda fault: (fault.place.start, fault.place.end, fault.kind, fault.after))
    return list(numbered(faults)), finder.excluded


class _Finder(ast.NodeVisitor):
    """Walks through a module; what cannot be wrong is not entered, what is ruled out is counted."""

    def __init__(self, source: SourceText, file: str) -> None:
        self.source, self.file = source, file
        self.found = dict[Fault, None]()
        self.excluded = Counter[str]()
        self.rule = ""  # by which whatever stands here is left out
        self.scope = Scope(source)
        self.lines = (1, 1)
        self.whole: ast.stmt | None = None  # the outermost statement
        self.compiled = False  # inside a function that a device runs, of which no line is seen

    def visit(self, node: ast.AST) -> None:
        """The faults of a node, then those inside it."""
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Raise, ast.Pass, ast.Global, ast.Nonlocal)):
            return
        if isinstance(node, ast.If) and self.source.of(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            return
        if isinstance(node, ast.stmt):
            self.lines = _lines_of(node)
            if node.col_offset == 0:
                self.whole = node
        for change in filter(None, CHANGES.get(type(node), _none)(node, self.scope)):
            self._take(change, node)
        super().visit(node)

    def _take(self, change: Change, node: ast.AST) -> None:
        rule = self.rule or _rule(change, node, self.source)
        if rule:
            self.excluded[rule] += 1
            return
        before = self.source.text(change.start, change.end)
        if before == change.after or not self._is_valid(change):
            return
        line = self.source.line_of(change.start)
        place = Place(line, change.start, change.end, *self.lines)
        text = self.source.line(line)
        self.found[Fault(self.file, text, change.kind, before, change.after, 0, place, untold=self.compiled)] = None

    def _is_valid(self, change: Change) -> bool:
        """Whether what comes of it is Python: its outermost statement, which takes less time than the file."""
        content = self.source.content
        start, end = self.source.span(self.whole) if self.whole is not None else (0, len(content))
        try:
            ast.parse(content[start : change.start] + change.after.encode() + content[change.end : end])
        except SyntaxError:
            return False
        return True

    # --- what is entered, and as what --------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: _Function) -> None:
        """Defaults and the body; neither decorators, which tune or cache, nor annotations."""
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        before = self.scope, self.rule, self.compiled
        given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        names = tuple(argument.arg for argument in given if argument.arg not in ("self", "cls"))
        self.scope = Scope(self.source, names)
        self.rule = self.rule or (TEXT if node.name in _SPOKEN else "")
        self.compiled = self.compiled or any("jit" in self.source.of(one) for one in node.decorator_list)
        for statement in node.body:
            self.visit(statement)
        self.scope, self.rule, self.compiled = before

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """What is assigned; of names that tune, plain numbers are left out."""
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if not _SPOKEN.isdisjoint(names):
            return
        tunes = any(_TUNING.fullmatch(name) for name in names) and _is_plain(node.value)
        self._ruled(node.value, TUNING if tunes else "")
        for target in node.targets:
            self.visit(target)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """The arguments; of those that tune, numbers are left out, and all of what is said to people."""
        if _LOGGING.fullmatch(self.source.of(node.func)):
            self._ruled(node.func, TEXT, *node.args, *(keyword.value for keyword in node.keywords))
            return
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            tunes = keyword.arg is not None and _TUNING.fullmatch(keyword.arg) and _is_plain(keyword.value)
            self._ruled(keyword.value, TUNING if tunes else "")

    def _ruled(self, node: ast.AST, rule: str, *others: ast.AST) -> None:
        """Enters nodes with a rule that leaves out what is in them."""
        before, self.rule = self.rule, self.rule or rule
        for one in (node, *others):
            self.visit(one)
        self.rule = before


def _none(*_: object) -> Iterator[Change]:
    return iter(())


def _lines_of(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement; of one with a body its head alone."""
    body = getattr(node, "body", None)
    last = node.end_lineno or node.lineno
    return node.lineno, max(node.lineno, body[0].lineno - 1) if isinstance(body, list) and body else last


def _is_plain(node: ast.AST) -> bool:
    """Whether a value is a number, or several."""
    return all(
        isinstance(one, (ast.Constant, ast.Tuple, ast.List, ast.Load, ast.UnaryOp, ast.USub)) for one in ast.walk(node)
    )


def _rule(change: Change, node: ast.AST, source: SourceText) -> str:
    """The rule by which a fault in this node is left out; empty where there is none."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = source.of(node.value.func)
        return TEXT if _LOGGING.fullmatch(called) else ASSERTED if _ASSERTING.fullmatch(called) else ""
    if isinstance(node, ast.Call) and change.kind == "cast":
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        return HUGE if any(isinstance(a, ast.Attribute) and a.attr in _WIDE for a in arguments) else ""
    if isinstance(node, ast.Call) and change.kind == "keyword":
        after = {name.strip() for name in re.findall(r"(\w+)\s*=(?!=)", change.after)}
        dropped = [keyword.arg for keyword in node.keywords if keyword.arg is not None and keyword.arg not in after]
        return TUNING if dropped and all(_TUNING.fullmatch(name) for name in dropped) else ""
    return ""
