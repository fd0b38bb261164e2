"""Wait for a query's epoch watermark in a Lance dataset."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue

from airflow_provider_lance.compat import AirflowFailException, AirflowSkipException, conf
from airflow_provider_lance.exceptions import SpecError, TransientError, error_class
from airflow_provider_lance.hooks.errors import no_retry_if_terminal
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.operators.checks import check_dataset, is_mapped, is_open
from airflow_provider_lance.protocol.decoding import shown
from airflow_provider_lance.protocol.option_parsers import count
from airflow_provider_lance.triggers.condition import EpochCondition
from airflow_provider_lance.triggers.epoch import LanceEpochTrigger
from airflow_provider_lance.triggers.watermark_follower import Follower, OnMissing, describe, seen

__all__ = ["LanceEpochSensor"]


class LanceEpochSensor(BaseSensorOperator):
    """
    Wait until a streaming query has committed an epoch that meets a condition.

    Exactly one of ``epoch``, ``advanced`` and ``max_age`` sets the condition. The watermark is the
    exact one, read from the dataset itself: no driver need be running. Returns the watermark seen:
    ``epoch``, ``version``, ``committedAt``.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI. (templated)
    :param query_id: The streaming query. (templated)
    :param epoch: Wait until this epoch, or a later one, is committed. (templated)
    :param advanced: Wait until an epoch is committed that did not exist when the DAG run started.
    :param max_age: Wait until the newest epoch was committed at most this long ago.
    :param on_missing: ``wait`` or ``fail`` while the dataset or the query in it is missing.
    :param lance_conn_id: The Lance connection; ``None`` for absolute URIs without storage options.
        (templated)
    :param deferrable: Check once, then wait in the triggerer.
    """

    template_fields: Sequence[str] = ("uri", "query_id", "epoch", "lance_conn_id")
    ui_color = "#d9ead3"

    def __init__(
        self,
        *,
        uri: str,
        query_id: str,
        epoch: int | str | None = None,
        advanced: bool = False,
        max_age: timedelta | None = None,
        on_missing: str = OnMissing.WAIT,
        lance_conn_id: str | None = LanceHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (epoch is not None) + advanced + (max_age is not None) != 1:
            raise SpecError(
                "give exactly one of epoch=<number>, advanced=True and max_age=<timedelta>; got "
                f"epoch={epoch!r}, advanced={advanced!r}, max_age={max_age!r}"
            )
        self.uri = uri
        self.query_id = query_id
        self.epoch = epoch
        self.advanced = advanced
        self.max_age = max_age
        self.on_missing = OnMissing.parse(on_missing).value
        self.lance_conn_id = lance_conn_id
        self.deferrable = deferrable
        if is_mapped(self):
            return
        # Arguments without a template are checked when the DAG is parsed.
        check_dataset(uri, query_id, lance_conn_id)
        if not advanced and not is_open(epoch):
            self._asked()

    @cached_property
    def hook(self) -> LanceHook:
        """Return the hook of the Lance connection."""
        return LanceHook(self.lance_conn_id)

    @cached_property
    def _follower(self) -> Follower:
        return Follower(self.hook, self.uri, self.query_id, OnMissing.parse(self.on_missing))

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        try:
            first = self.poke(context)
        except AirflowFailException as error:
            # As BaseSensorOperator does around its own pokes and around a deferral's end.
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"Skipped instead of failed: {error}") from error
            raise
        if first.is_done:
            return first.xcom_value
        return self.defer(
            trigger=LanceEpochTrigger(
                uri=self.uri,
                query_id=self.query_id,
                condition=self._condition(context).to_json(),
                lance_conn_id=self.lance_conn_id,
                on_missing=self.on_missing,
                poll_interval=self.poke_interval,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        with no_retry_if_terminal():
            condition = self._condition(context)
            try:
                watermark = self._follower.look()
            except TransientError as error:
                self.log.warning("The store did not answer; asking again later. error=%s", error)
                return PokeReturnValue(is_done=False)
        self.log.info("Waiting for %s. %s", condition, describe(watermark))
        if watermark and condition.is_met(watermark, datetime.now(UTC)):
            return PokeReturnValue(is_done=True, xcom_value=seen(watermark))
        return PokeReturnValue(is_done=False)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the watermark that ended the wait, or raise an error that waiting cannot solve."""
        if event["status"] == "error":
            with no_retry_if_terminal():
                raise error_class(event["error"])(event["message"])
        watermark: dict[str, Any] = event["watermark"]
        self.log.info("The wait is over. watermark=%s", watermark)
        return watermark

    def _condition(self, context: Context) -> EpochCondition:
        if self.advanced:
            run = context["dag_run"]
            return EpochCondition(since=run.start_date or run.run_after)
        return self._asked()

    def _asked(self) -> EpochCondition:
        """Return the condition in the form that holds for every run."""
        if self.max_age is not None:
            return EpochCondition(max_age=self.max_age)
        try:
            # A rendered template may have whitespace around it.
            given = self.epoch.strip() if isinstance(self.epoch, str) else self.epoch
            return EpochCondition(epoch=count(given))
        except ValueError:
            raise SpecError(f"epoch must be a whole number, got {shown(self.epoch)}") from None
