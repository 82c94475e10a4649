"""Options of the library, which are texts, from Python's arguments.

`_option_types` has them all; it is written from the library's own table when the package is built.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral, Real
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

from ._errors import UsageError
from ._option_types import DATA, FLAGS, NAMES, BuildOptions, FitOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._option_types import DataOptions

Scale = Union[None, float, str, Mapping[str, Union[float, str]]]
Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = {argument: option for option, argument in NAMES.items()}


def _text_of(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _texts_of(option: str, value: object) -> list[str]:
    """What the option is given, once or several times. A mapping gives ``name=value``, or ``name=a,b``."""
    if isinstance(value, bool) and option in FLAGS:
        return ["true"] if value else []
    if isinstance(value, Mapping):
        lists = {name: [of] if isinstance(of, str) or not isinstance(of, Iterable) else of for name, of in value.items()}
        return [f"{name}={','.join(map(_text_of, of))}" for name, of in lists.items()]
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [_text_of(element) for element in value]
    return [_text_of(value)]


def options_of(among: Collection[str] | None = None, /, **arguments: Any) -> list[tuple[str, str]]:
    """The options with the names and forms that the command takes: ``loss_scale=2`` is ``("loss-scale", "2")``.

    None is an option that is not given. Objects such as optimizers say with ``str`` what the command would take.

    Args:
        among: the options that are wanted, by the command's names; others are left out.
    """
    options: list[tuple[str, str]] = []
    for argument, value in arguments.items():
        option = _OPTIONS.get(argument) or argument.replace("_", "-")
        if value is None or (among is not None and option not in among):
            continue
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) and argument in _single_numbers():
            raise UsageError(f"{argument} takes one value, not a {type(value).__name__}", "OT6001")
        if option.startswith("no-"):
            if isinstance(value, (str, bytes)):
                raise UsageError(f"{argument} takes True or False, not {value!r}", "OT6001")
            value = not value
        options.extend((option, text) for text in _texts_of(option, value))
    return options


@functools.cache
def _single_numbers() -> frozenset[str]:
    """The arguments that are one number, or True or False."""
    kinds = [*FitOptions.__annotations__.items(), *BuildOptions.__annotations__.items()]
    return frozenset(name for name, kind in kinds if kind.startswith(("int", "float", "bool")) and "Iterable" not in kind)


def whole_number(argument: str, value: object) -> int:
    """The number, where Python counts with what the library reads as a text elsewhere; the errors are the library's."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    what = f"{value} is out of range" if isinstance(value, Real) and not isinstance(value, bool) else f"{value!r} is no number"
    raise UsageError(f"{argument}: {what}; take a whole number of at least 1", "OT6001")


def takes(options: type) -> Callable[[Function], Function]:
    """The function takes the keys of this TypedDict as keyword arguments besides its own.

    Its signature and the line ``options: ...`` of its docstring have them one by one, and a TypeError for another
    argument names a similar one.
    """

    def decorated(function: Function) -> Function:
        code = cast(FunctionType, function).__code__
        own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known = [*own, *options.__annotations__]

        @functools.wraps(function)
        def checked(*arguments: Any, **named: Any) -> Any:
            for name in named:
                if name not in known:
                    raise TypeError(_unknown(function.__name__, name, known))
            return function(*arguments, **named)

        # inspect takes an eighth of the time in which the package is imported. Notebooks and consoles have it.
        if "inspect" in sys.modules:
            checked.__signature__ = _signature_with(function, options)  # type: ignore[attr-defined]
        checked.__doc__ = _with_options(function.__doc__, options.__doc__)
        return cast(Function, checked)

    return decorated


def _signature_with(function: Callable[..., Any], options: type) -> object:
    import inspect

    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    keywords = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in options.__annotations__.items()
    ]
    return signature.replace(parameters=own + keywords)


def _with_options(text: str | None, options: str | None) -> str | None:
    """The docstring, with a line for each option in the place of the one that stands for all."""
    if text is None or options is None:  # python -OO
        return text
    lines = text.split("\n")
    place = next(i for i, line in enumerate(lines) if line.lstrip().startswith("options: "))
    indent = len(lines[place]) - len(lines[place].lstrip())
    rows = options.split("Attributes:\n", 1)[1].rstrip().split("\n")
    lines[place : place + 1] = [" " * indent + row[8:] for row in rows]
    return "\n".join(lines)


def _unknown(function: str, name: str, known: Collection[str]) -> str:
    import difflib

    similar = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{similar[0]}'?" if similar else ""
    return f"{function}() has no argument '{name}'{hint}"


def reading_options(**options: Unpack[DataOptions]) -> list[tuple[str, str]]:
    """The options of the library that say how data files are read."""
    for name in options:
        if _OPTIONS.get(name) not in DATA:
            raise TypeError(_unknown("reading", name, [NAMES[option] for option in DATA]))
    return options_of(**options)


def check_suffix(path: str | os.PathLike[str], *suffixes: str) -> None:
    """Raises UsageError for a file name that ends with another suffix, before a file of another format is written."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix and suffix not in suffixes:
        raise UsageError(f"a name that ends in {' or '.join(suffixes)} is needed, not '{os.fspath(path)}'")
