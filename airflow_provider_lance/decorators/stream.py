"""``@task.lance_stream``: a function that returns a streaming DataFrame becomes a stream.

The function is shipped alone, as its own source text: the driver, which has no Airflow on a
cluster, does not import the DAG's file.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import symtable
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.operators.stream import LanceStreamOperator

if TYPE_CHECKING:
    from airflow_provider_lance.backends.submission import Submission
    from airflow_provider_lance.spec.job import JobSpec

__all__ = ["lance_stream_task"]

_ROWS = ("source", "sql", "dataframe", "arguments")
"""The operator's arguments that the function replaces."""

_ENTRY = "lance_stream_entry:dataframe"
"""What the driver calls for a function that is shipped alone."""

_ARGUMENTS = "json"
_CODE = "lance_stream_function"
_ENTRY_TEXT = """import json

import {module}


def dataframe(spark, arguments):
    return {module}.{name}(spark, **json.loads(arguments["{arguments}"]))
"""


class _LanceStreamDecoratedOperator(DecoratedOperator, LanceStreamOperator):
    """Streams what a function returns."""

    custom_operator_name = "@task.lance_stream"
    template_fields: Sequence[str] = (
        *(name for name in LanceStreamOperator.template_fields if name not in _ROWS),
        *DecoratedOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **LanceStreamOperator.template_fields_renderers,
        **DecoratedOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if taken := sorted(kwargs.keys() & set(_ROWS)):
            raise SpecError(
                f"@task.lance_stream takes no {taken}: its function returns the rows, and its "
                "arguments are those of the call"
            )
        _modules_of(python_callable)
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            dataframe=_ENTRY,
            **kwargs,
        )

    def job_spec(self, launched_by: str) -> JobSpec:
        self.arguments = _bound_arguments(self.python_callable, list(self.op_args), self.op_kwargs)
        return super().job_spec(launched_by)

    def submission(self) -> Submission:
        modules = _modules_of(self.python_callable)
        return replace(super().submission(), modules=modules)


def lance_stream_task(
    python_callable: Callable[..., Any] | None = None, **kwargs: Any
) -> TaskDecorator:
    """
    Stream the DataFrame that a function returns into a Lance dataset; ``@task.lance_stream``.

    The function's first parameter is ``spark``, the driver's Spark session. The others are those
    that the DAG passes, limited to what JSON can hold. Its source text alone is shipped to the
    driver and runs there: import what it needs in its body.

    :param python_callable: The function.
    :param kwargs: Further arguments of :class:`.LanceStreamOperator`, except ``source``, ``sql``,
        ``dataframe`` and ``arguments``.
    """
    if python_callable is None:
        return cast("TaskDecorator", partial(lance_stream_task, **kwargs))
    if not hasattr(python_callable, "__signature__"):  # one function may make many tasks
        # The driver passes the session; a DAG calls the function without it.
        python_callable.__signature__ = _without_session(python_callable)  # type: ignore[attr-defined]
    return task_decorator_factory(
        python_callable=python_callable,
        decorated_operator_class=_LanceStreamDecoratedOperator,
        **{"multiple_outputs": False} | kwargs,
    )


# --- The function's code --------------------------------------------------------------------------


def _modules_of(function: Callable[..., Any]) -> dict[str, bytes]:
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
    return {f"{_CODE}.py": code.encode(), f"{_ENTRY.partition(':')[0]}.py": entry.encode()}


def _bound_arguments(
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


def _without_session(function: Callable[..., Any]) -> inspect.Signature:
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
        f"@task.lance_stream cannot ship {name!r} to the driver: {why}. Alternatively, put it "
        "into a module of its own in the DAGs folder and pass dataframe='module:function' to a "
        "LanceStreamOperator, which ships the module"
    )
