"""Finds calls and operators two of whose operands add nodes to a graph.

C++ leaves open in which order the operands of a call are evaluated, and compilers differ: where two of them add nodes,
the order of a model's nodes and the suffixes of their names depend on the compiler. One of them is to be named before
the call. Elements of a braced list are evaluated from left to right.

A function adds nodes if it calls Graph::add_node, or a function that does. Of what is called by way of a pointer or a
std::function only the type is known: it is taken to add nodes if the type has a Var, a Builder or the like. An operand
that asks for an unused name counts, too, where another one adds nodes. Constants do not count: equal ones are one, and
their names say what they hold.

Usage: evaluation_order.py compile_commands.json
   checks onnx_passes/, whose sources are read with the flags that the file names for them
"""

import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from clang.cindex import CursorKind, Index, conf

ROOT = Path(__file__).resolve().parents[2]
CHECKED = "onnx_passes"

ADD_NODES = {"onnx_train::Graph::add_node", "onnx_train::Graph::add_input"}
ASK_FOR_NAMES = {"onnx_train::Graph::unique_name"}
CONSTANT = "onnx_train::Builder::constant"
UNKNOWN = "a function of which only the type is known"
MAY_ADD_NODES = re.compile(r"\bonnx_train::(Var|Builder|TermBuilder|Grad)\b")

FUNCTIONS = {
    CursorKind.FUNCTION_DECL,
    CursorKind.FUNCTION_TEMPLATE,
    CursorKind.CXX_METHOD,
    CursorKind.CONSTRUCTOR,
    CursorKind.CONVERSION_FUNCTION,
}
CONVERSIONS = {CursorKind.UNEXPOSED_EXPR, CursorKind.CALL_EXPR}
# C++ says of these which operand comes first.
ORDERED = re.compile(r",|&&|\|\||<<|>>|\[\]|[-+*/%&|^]?=|(<<|>>)=")


def relative(file):
    """A file's path from the root of the sources; None for those of others."""
    path = os.path.relpath(file.name, ROOT) if file else os.pardir
    return None if path.startswith((os.pardir, ".deps", "build")) else path


def qualified(cursor):
    names = []
    while cursor and cursor.kind != CursorKind.TRANSLATION_UNIT:
        names.insert(0, cursor.spelling)
        cursor = cursor.semantic_parent
    return "::".join(n for n in names if n)


class Unit:
    """What the sources of a folder say: which functions call which, and where several operands of a call do."""

    def __init__(self, folder, flags):
        self.calls = {}  # what a function calls, by function
        self.places = set()  # (file, line, call, what each operand calls)
        self.names = {}
        # The sources of a folder compile together, and fast.
        together = str(folder / "together.cc")
        text = "".join(f'#include "{source}"\n' for source in sorted(folder.glob("*.cc")))
        unit = Index.create().parse(together, args=flags, unsaved_files=[(together, text)])
        self.errors = [str(d) for d in unit.diagnostics if d.severity >= d.Error]
        for cursor in unit.cursor.get_children():
            if relative(cursor.location.file):
                self.visit(cursor)

    def name(self, function):
        """One name for all declarations of a function and all instances of a template; None for functions of others."""
        if function.hash not in self.names:
            self.names[function.hash] = self.new_name(function)
        return self.names[function.hash]

    def new_name(self, function):
        file = relative(function.location.file)
        if not file:
            return None
        function = template_of(function) or function
        name = qualified(function)
        if name in ADD_NODES | ASK_FOR_NAMES | {CONSTANT}:
            return name
        if function.kind == CursorKind.CXX_METHOD and function.is_virtual_method():
            return "virtual " + function.spelling
        if function.spelling == "operator()":  # of a lambda: its place
            place = function.semantic_parent.location
            return f"{relative(place.file)}:{place.line}:{place.column}"
        return function.get_usr()

    def callees(self, call, children):
        """The functions that a call may call; UNKNOWN if one may add nodes of which only the type is known."""
        function = call.referenced if call.referenced is not None and call.referenced.kind in FUNCTIONS else None
        name = self.name(function) if function else None
        if name and not template_of(function):
            return {name}
        if name:  # what a template calls may depend on its arguments
            type_of = call.type
        elif children and (not function or function.spelling == "operator()"):  # a pointer, a std::function
            type_of = children[0].type
        else:  # of a library
            return set()
        may_add = MAY_ADD_NODES.search(type_of.get_canonical().spelling)
        return {n for n in (name, UNKNOWN if may_add else None) if n}

    def visit(self, cursor):
        """What is called when `cursor` is evaluated. A lambda is taken to be called where it is made."""
        children = list(cursor.get_children())
        calls_of = {child.hash: self.visit(child) for child in children}
        calls = frozenset().union(*calls_of.values())
        if cursor.kind in FUNCTIONS:
            self.calls.setdefault(self.name(cursor), set()).update(calls)
            return frozenset()
        if cursor.kind == CursorKind.LAMBDA_EXPR:
            place = cursor.location
            name = f"{relative(place.file)}:{place.line}:{place.column}"
            self.calls.setdefault(name, set()).update(calls)
            return frozenset({name})
        if cursor.kind == CursorKind.CALL_EXPR:
            self.add_place(cursor, list(cursor.get_arguments()), calls_of)
            return calls | self.callees(cursor, children)
        if cursor.kind == CursorKind.BINARY_OPERATOR:
            self.add_place(cursor, children, calls_of)
        return calls

    def add_place(self, cursor, operands, calls_of):
        calls = tuple(calls_of[o.hash] for o in operands if calls_of.get(o.hash) and not is_lambda(o))
        if len(calls) > 1 and not is_ordered(cursor, operands):
            line = cursor.location.line
            self.places.add((relative(cursor.location.file), line, cursor.spelling or "an operator", calls))


def template_of(function):
    """The template that a function is an instance of, if it is one."""
    template = conf.lib.clang_getSpecializedCursorTemplate(function)
    return template if template and template.kind in FUNCTIONS else None


def is_lambda(cursor):
    children = list(cursor.get_children())
    while cursor.kind in CONVERSIONS and len(children) == 1:
        cursor = children[0]
        children = list(cursor.get_children())
    return cursor.kind == CursorKind.LAMBDA_EXPR


def is_ordered(cursor, operands):
    if cursor.kind == CursorKind.BINARY_OPERATOR:
        start, end = operands[0].extent.end.offset, operands[1].extent.start.offset
        between = "".join(t.spelling for t in cursor.get_tokens() if start <= t.extent.start.offset < end)
        return bool(ORDERED.fullmatch(between))
    if cursor.spelling.startswith("operator"):
        return bool(ORDERED.fullmatch(cursor.spelling.removeprefix("operator")))
    # T{a, b}
    is_constructor = cursor.referenced is not None and cursor.referenced.kind == CursorKind.CONSTRUCTOR
    return is_constructor and [t.spelling for t in cursor.get_tokens()][-1:] == ["}"]


def read_flags(compile_commands):
    """Those that say what a source means, and the folders that the compiler searches by itself."""
    commands = json.loads(Path(compile_commands).read_text())
    words = next(shlex.split(c["command"]) for c in commands if CHECKED in c["file"])
    flags = [w for w in words if w.startswith(("-I", "-D", "-std="))]
    flags += [w for option, path in zip(words, words[1:]) if option in ("-isystem", "-include") for w in (option, path)]
    verbose = [words[0], "-xc++", "-E", "-v", os.devnull]
    said = subprocess.run(verbose, capture_output=True, text=True, check=True).stderr
    searched = said.split("search starts here:\n")[-1].split("End of search")[0].split()
    return [*flags, *("-isystem" + folder for folder in searched), "-w"]


def that_reach(targets, callers):
    """The functions that call one of `targets`, in however many steps."""
    found, todo = set(targets), list(targets)
    while todo:
        for caller in callers.get(todo.pop(), set()) - found - {CONSTANT}:
            found.add(caller)
            todo.append(caller)
    return found


def main(compile_commands):
    flags = read_flags(compile_commands)
    folders = sorted({source.parent for source in (ROOT / CHECKED).rglob("*.cc")})
    with multiprocessing.Pool(int(os.environ.get("LINT_JOBS", "2"))) as pool:
        units = pool.starmap(Unit, [(folder, flags) for folder in folders], chunksize=1)
    errors = [error for unit in units for error in unit.errors]
    if errors:
        print("\n".join(errors), file=sys.stderr)
        return 1
    callers = {}
    for unit in units:
        for caller, callees in unit.calls.items():
            for callee in callees:
                callers.setdefault(callee, set()).add(caller)
    adding = that_reach(ADD_NODES | {UNKNOWN}, callers)
    naming = that_reach(ASK_FOR_NAMES, callers) | adding
    faults = {
        (file, line, call)
        for unit in units
        for file, line, call, operands in unit.places
        if any(o & adding for o in operands) and sum(bool(o & naming) for o in operands) > 1
    }
    for file, line, call in sorted(faults):
        print(f"{file}:{line}: two operands of {call} add nodes: name the first")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
