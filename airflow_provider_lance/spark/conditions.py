"""SQL conditions that users write over a stream's columns, checked before the query starts."""

from __future__ import annotations

from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from airflow_provider_lance.exceptions import SpecError

__all__ = ["columns_of_condition", "refuse_unrepeatable"]


def columns_of_condition(df: DataFrame, condition: str, what: str) -> tuple[str, ...]:
    """Check that a condition is boolean and return the columns that it reads.

    :param what: the option's name, for messages.
    :raises SpecError: Spark cannot read it, or it is not boolean.
    """
    evaluated = _evaluated(df, condition, what)
    kind = evaluated.schema[0].dataType
    if not isinstance(kind, BooleanType):
        raise SpecError(f"{what} must be a boolean condition, it is {kind.simpleString()}")
    found: Any = evaluated._jdf.queryExecution().analyzed().references().toSeq()
    return tuple(str(found.apply(number).name()) for number in range(found.size()))


def refuse_unrepeatable(df: DataFrame, condition: str, what: str) -> None:
    """Refuse a condition that may have another value when the same epoch is computed again.

    :raises SpecError: it depends on chance, the clock, the session, other rows or other tables.
    """
    jvm: Any = df.sparkSession._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    plan: Any = _evaluated(df, condition, what)._jdf.queryExecution().analyzed()
    source: Any = df._jdf.queryExecution().analyzed()
    why = ""
    if plan.containsPattern(patterns.PLAN_EXPRESSION()):
        why = "it reads other tables, in a subquery"
    elif plan.nodeName() != "Project" or not plan.child().fastEquals(source):
        why = "it looks at more than one row"
    elif not plan.projectList().head().deterministic():
        why = "Spark calls it non-deterministic, as rand() and uuid() are"
    elif plan.projectList().head().containsPattern(patterns.CURRENT_LIKE()):
        why = "it reads the clock or the session, as current_timestamp() and current_user() do"
    if why:
        raise SpecError(
            f"{what} ({condition}): {why}. An epoch that is computed again after a crash must have "
            "the same rows; use the stream's columns only"
        )


def _evaluated(df: DataFrame, condition: str, what: str) -> DataFrame:
    try:
        return df.select(F.expr(condition))
    except (AnalysisException, ParseException) as error:
        raise SpecError(f"{what} cannot be read: {str(error).splitlines()[0]}") from None
