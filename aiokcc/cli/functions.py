"""Loads the user's functions, named on the command line as ``module:function``."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokcc.core.formatting import did_you_mean
from aiokcc.core.masking import mask_url
from aiokcc.errors import UsageError

__all__ = ["describe_location", "load_function"]


def load_function(name: str, gets: str, arguments: int = 1) -> Callable[..., Any]:
    """Return the function of this name. Raises UsageError if there is none, or if it does not take ``arguments`` arguments.

    The current directory comes first in the search for the module, as it does for ``python -m``.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not path or not all(map(str.isidentifier, module_name.split("."))) or "@" in name:
        raise UsageError(f"{mask_url(name)!r} is not a function; expected MODULE:FUNCTION, such as handlers:handle")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _import(module_name, path)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{module_name} has no {path!r}{_suggest(found, part)}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{name} is {_type_name(found)}, which cannot be called; expected a function of {gets}")
    if inspect.isasyncgenfunction(found) or inspect.isgeneratorfunction(found):
        raise UsageError(f"{name} is a generator: it contains yield, so a call would do nothing")
    try:
        inspect.signature(found).bind(*[None] * arguments)
    except TypeError:
        raise UsageError(f"{name}{inspect.signature(found)} cannot be called with {gets}") from None
    except ValueError:  # a function in C without a signature
        pass
    return found  # type: ignore[no-any-return]


def describe_location(error: BaseException, *functions: str) -> str:
    """Return where an exception was raised: ``handlers.py, line 12, in handle``; empty if there is no traceback.

    If ``functions`` of the user are given, named as on the command line, it is the last line in their files. That is where
    they called the library that raised; the library's own line would not help the user.
    """
    steps = list(traceback.walk_tb(error.__traceback__))
    for files in ({_module_file(name) for name in functions}, {_code_file(name) for name in functions}):
        if theirs := [step for step in steps if step[0].f_code.co_filename in files]:
            steps = theirs
            break
    if not steps:
        return ""
    frame, line = steps[-1]
    return f"{_relative(frame.f_code.co_filename)}, line {line}, in {frame.f_code.co_name}"


def _module_file(name: str) -> str | None:
    return getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)


def _code_file(name: str) -> str | None:
    """Return the file that defines the function; the module that was named may only import it."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    code = getattr(inspect.unwrap(found), "__code__", None) if callable(found) else None
    return None if code is None else str(code.co_filename)


def _import(module_name: str, path: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise UsageError(
                f"{module_name} cannot be imported: it needs {missing!r}, which is not installed"
            ) from error
        hint = ""
        if module_name.endswith(".py") or "/" in module_name:
            stem = module_name.removesuffix(".py").strip("./").replace("/", ".")
            hint = f". A module has no path and no .py: {stem}:{path}"
        raise UsageError(f"there is no module {module_name!r}, in {Path.cwd()} or installed{hint}") from error
    except Exception as error:
        where = (
            f"{_relative(error.filename or '')}, line {error.lineno}"
            if isinstance(error, SyntaxError)
            else describe_location(error)
        )
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{module_name} cannot be imported: {type(error).__name__}: {text} ({where})") from error


def _suggest(found: Any, part: str) -> str:
    names = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
    if near := did_you_mean(part, names):
        return near
    module = getattr(found, "__name__", None)
    mine = [n for n in names if inspect.isfunction(f := getattr(found, n)) and f.__module__ == module]
    return f"; it has {', '.join(mine[:10])}" if mine else ""


def _type_name(found: Any) -> str:
    name = type(found).__name__
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"


def _relative(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
