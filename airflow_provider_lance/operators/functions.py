"""A user's function that builds a streaming DataFrame, and the code shipped for it.

A function is shipped as the module that holds it, or alone, as its own source text. In both cases
the driver, which has no Airflow on a cluster, does not import the DAG's file.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import symtable
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType
from typing import Any

from airflow_provider_lance.exceptions import SpecError

__all__ = ["ENTRY", "bound_arguments", "modules_of", "modules_of_function", "without_session"]

ENTRY = "lance_stream_entry:dataframe"
"""What the driver calls for a function that is shipped alone."""

_ARGUMENTS = "json"
_CODE = "lance_stream_function"
_ENTRY_TEXT = """import json

import {module}


def dataframe(spark, arguments):
    return {module}.{name}(spark, **json.loads(arguments["{arguments}"]))
"""


def modules_of(dataframe: str | None, py_files: str | None) -> dict[str, bytes]:
    """Return the files of the module that ``module:function`` names, by their names in a zip.

    Only for a module that this process finds and that is not installed, such as those of the DAGs
    folder; nothing is imported. Modules in ``py_files`` are not included again.
    """
    top = (dataframe or "").partition(":")[0].partition(".")[0]
    given = [Path(each.strip()) for each in (py_files or "").split(",") if each.strip()]
    if not top or any(each.suffix != ".py" or each.stem == top for each in given):
        return {}
    found = PathFinder.find_spec(top)
    if found is None:
        return {}
    folders = [Path(each) for each in found.submodule_search_locations or ()]
    files = [(file, folder.parent) for folder in folders for file in sorted(folder.rglob("*.py"))]
    if not folders and found.origin and found.origin.endswith(".py"):
        files = [(Path(found.origin), Path(found.origin).parent)]
    if any(_is_installed(file) for file, _ in files):
        return {}
    return {file.relative_to(root).as_posix(): file.read_bytes() for file, root in files}


def _is_installed(file: Path) -> bool:
    places = {Path(each).resolve() for each in sysconfig.get_paths().values()}
    return any(parent in places for parent in file.resolve().parents)


def modules_of_function(function: Callable[..., Any]) -> dict[str, bytes]:
    """Return the modules that run one function alone, from its own source text.

    :raises SpecError: it cannot run alone: it has no source text of its own, or uses names from
        outside.
    """
    node, source = _source_of(function)
    if names := sorted(_names_from_outside(node)):
        raise _cannot(
            function,
            f"it uses {names} from outside of it. Import or define them in the function, or pass "
            "them as its arguments",
        )
    entry = _ENTRY_TEXT.format(module=_CODE, name=node.name, arguments=_ARGUMENTS)
    code = f"from __future__ import annotations\n\n{source}"
    return {f"{_CODE}.py": code.encode(), f"{ENTRY.partition(':')[0]}.py": entry.encode()}


def bound_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, str]:
    """Return a call's arguments as the driver receives them.

    :raises SpecError: JSON cannot hold a value.
    """
    bound = inspect.signature(function).bind(*args, **kwargs)
    kinds = {name: each.kind for name, each in bound.signature.parameters.items()}
    given: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        given |= value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value}
    for name, value in given.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"argument {name} of {function.__name__!r} cannot be sent to the driver: {error}. "
                "Texts, numbers, True, False, None, and lists and mappings of them can"
            ) from None
    return {_ARGUMENTS: json.dumps(given)}


def without_session(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature with which a DAG calls a function: without ``spark``.

    :raises SpecError: it is not a plain function, or its first parameter has another name.
    """
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise _cannot(function, "only a function that is defined with def can be shipped")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise _cannot(function, "it must return a DataFrame, and not wait or yield")
    if hasattr(function, "__wrapped__"):
        raise _cannot(function, "another decorator wraps it, which would be lost")
    every = list(inspect.signature(function).parameters.values())
    if not every or every[0].name != "spark":
        raise _cannot(function, "its first parameter must be spark, the Spark session")
    if any(each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) for each in every):
        raise _cannot(function, "its parameters must be such that they can be given by name")
    return inspect.Signature(every[1:])


def _source_of(function: Callable[..., Any]) -> tuple[ast.FunctionDef, str]:
    """Return a function's syntax tree, and its source text without decorators."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        raise _cannot(function, "its source text cannot be found") from None
    indented = text[:1].isspace()
    whole = f"if True:\n{text}" if indented else text  # multi-line texts keep their indentation
    tree = ast.parse(whole)
    node = next(each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
    lines = whole.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    return node, "".join(["if True:\n", *lines] if indented else lines)


class _Bare(ast.NodeTransformer):
    """Removes what the driver never evaluates: annotations, and the outer decorators."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(arg=node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return ast.Assign(targets=[node.target], value=self.visit(node.value))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def _names_from_outside(function: ast.FunctionDef) -> set[str]:
    node = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    bare = ast.fix_missing_locations(ast.Module([_Bare().visit(node)], []))
    table = symtable.symtable(ast.unparse(bare), "<function>", "exec")
    return set(_globals(table)) - set(dir(builtins)) - {function.name}


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)


def _cannot(function: Callable[..., Any], why: str) -> SpecError:
    name = getattr(function, "__name__", type(function).__name__)
    return SpecError(
        f"@task.lance_stream cannot ship {name!r} to the driver: {why}. Or put the function into a "
        "module of its own in the DAGs folder, and give a LanceStreamOperator "
        "dataframe='module:function'; the module is then shipped by itself"
    )
