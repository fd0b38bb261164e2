"""``@task.lance_stream``: a function that returns a streaming DataFrame becomes a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.operators.functions import (
    ENTRY,
    bound_arguments,
    modules_of_function,
    without_session,
)
from airflow_provider_lance.operators.stream import LanceStreamOperator

if TYPE_CHECKING:
    from airflow_provider_lance.backends.submission import Submission
    from airflow_provider_lance.spec.job import JobSpec

__all__ = ["lance_stream_task"]

_ROWS = ("source", "sql", "dataframe", "arguments")
"""The operator's arguments that the function replaces."""


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
        modules_of_function(python_callable)
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            dataframe=ENTRY,
            **kwargs,
        )

    def job_spec(self, launched_by: str) -> JobSpec:
        self.arguments = bound_arguments(self.python_callable, list(self.op_args), self.op_kwargs)
        return super().job_spec(launched_by)

    def submission(self) -> Submission:
        modules = modules_of_function(self.python_callable)
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
        python_callable.__signature__ = without_session(python_callable)  # type: ignore[attr-defined]
    return task_decorator_factory(
        python_callable=python_callable,
        decorated_operator_class=_LanceStreamDecoratedOperator,
        **{"multiple_outputs": False} | kwargs,
    )
