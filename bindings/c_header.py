"""Reads the declarations of include/onnx_train/onnx_train.h, from which those of other languages are generated.

The reader is strict: it knows the few forms that this header has, and fails with the text of any other one.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

HEADER = Path(__file__).parents[1] / "include" / "onnx_train" / "onnx_train.h"


@dataclass(frozen=True)
class Type:
    """`const char* const*`: base "char", is_const, pointers (True, False): for each *, whether it is const itself."""

    base: str
    is_const: bool = False
    pointers: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Function:
    """A function, a type of functions, or a field that is a pointer to one."""

    name: str
    result: Type
    parameters: tuple[tuple[str, Type], ...]


@dataclass
class Header:
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    structs: dict[str, dict[str, Type | Function]] = field(default_factory=dict)
    handles: list[str] = field(default_factory=list)  # structs without fields
    callbacks: dict[str, Function] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)


BASE_TYPES = "void char double int32_t int64_t size_t uint64_t"
KNOWN_TYPE = re.compile(rf"onnx_train_\w+|{BASE_TYPES.replace(' ', '|')}")


def read_type(text):
    match = re.fullmatch(r"(const )?(\w+)((?:\*(?: const)?)*)", text.strip().replace(" *", "*"))
    if not match or not KNOWN_TYPE.fullmatch(match[2]):
        raise ValueError(f"onnx_train.h: no type that is known: {text!r}")
    pointers = tuple(star.endswith("const") for star in re.findall(r"\*(?: const)?", match[3]))
    return Type(match[2], bool(match[1]), pointers)


def read_declarator(text):
    """"const char* name" -> ("name", its type)."""
    match = re.fullmatch(r"(.*[\s*])(\w+)", text.strip(), re.DOTALL)
    if not match:
        raise ValueError(f"onnx_train.h: no declaration: {text!r}")
    return match[2], read_type(match[1])


def read_parameters(text):
    return () if text.strip() == "void" else tuple(read_declarator(part) for part in text.split(","))


def read_fields(text):
    fields = {}
    for line in filter(None, map(str.strip, text.split(";"))):
        if pointer := re.fullmatch(r"(.*)\(\*(\w+)\)\((.*)\)", line):
            fields[pointer[2]] = Function(pointer[2], read_type(pointer[1]), read_parameters(pointer[3]))
            continue
        first, *others = line.split(",")
        name, kind = read_declarator(first)
        if others and kind.pointers:
            raise ValueError(f"onnx_train.h: several pointers in one declaration: {line!r}")
        for each in (name, *map(str.strip, others)):
            fields[each] = kind
    return fields


def read_enum(text):
    return {name: int(value) for name, value in (part.split("=") for part in re.sub(r"\s", "", text).split(","))}


def declarations(text):
    """Each declaration that ends at the outermost level, on one line and without comments."""
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    if macro := re.search(r"^#define (?!ONNX_TRAIN_H$).*", text, re.MULTILINE):
        raise ValueError(f"onnx_train.h: a macro, which no other language has: {macro[0]!r}")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    code, depth = "", 0
    for part in re.findall(r"[;{}]|[^;{}]+", text):
        depth += (part == "{") - (part == "}")
        if part == ";" and depth == 0:
            yield re.sub(r"\s+", " ", code).strip()
            code = ""
        else:
            code += part
    if code.strip():
        raise ValueError(f"onnx_train.h: something after the last declaration: {code!r}")


def read(path=HEADER):
    header = Header()
    for text in declarations(Path(path).read_text()):
        if enum := re.fullmatch(r"typedef enum (\w+) \{(.*)\} \1", text):
            header.enums[enum[1]] = read_enum(enum[2])
        elif struct := re.fullmatch(r"typedef struct (\w+) \{(.*)\} \1", text):
            header.structs[struct[1]] = read_fields(struct[2])
        elif handle := re.fullmatch(r"typedef struct (\w+) \1", text):
            header.handles.append(handle[1])
        elif callback := re.fullmatch(r"typedef (.*)\(\*(\w+)\)\((.*)\)", text):
            header.callbacks[callback[2]] = Function(callback[2], read_type(callback[1]), read_parameters(callback[3]))
        elif function := re.fullmatch(r"(.*[\s*])(onnx_train_\w+)\((.*)\)", text):
            header.functions[function[2]] = Function(function[2], read_type(function[1]), read_parameters(function[3]))
        else:
            raise ValueError(f"onnx_train.h: a declaration of an unknown form: {text!r}")
    return header
