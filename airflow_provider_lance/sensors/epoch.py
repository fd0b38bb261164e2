"""Wait for a query's epoch watermark in a Lance dataset, or for a consumer of the dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from airflow_provider_lance.protocol.option_parsers import count, positive
from airflow_provider_lance.triggers.condition import EpochCondition
from airflow_provider_lance.triggers.consumer_state import ConsumerCondition, ConsumerFollower
from airflow_provider_lance.triggers.epoch import LanceEpochTrigger
from airflow_provider_lance.triggers.watermark_follower import Follower, OnMissing, describe, seen

__all__ = ["LanceEpochSensor"]


class LanceEpochSensor(BaseSensorOperator):
    """
    Wait until a streaming query has committed an epoch, or read a dataset up to a version.

    With ``query_id``, exactly one of ``epoch``, ``advanced`` and ``max_age`` sets the condition.
    The watermark is the exact one, read from the dataset itself: no driver need be running. Returns
    the watermark seen: ``epoch``, ``version``, ``committedAt``.

    With ``consumer_id``, the sensor waits until that query has read everything up to ``version``,
    as the position says that it leaves in the dataset. Returns this position: ``version``,
    ``index``, ``snapshot``, ``writtenAt``, ``newestVersion``.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI. (templated)
    :param query_id: The streaming query that writes the dataset. (templated)
    :param epoch: Wait until this epoch, or a later one, is committed. (templated)
    :param advanced: Wait until an epoch is committed that did not exist when the DAG run started.
    :param max_age: Wait until the newest epoch was committed at most this long ago.
    :param consumer_id: A streaming query that reads the dataset, in place of ``query_id``.
        (templated)
    :param version: Wait until the consumer has read this version of the dataset; by default the
        newest one when the sensor starts. (templated)
    :param on_missing: ``wait`` or ``fail`` while the dataset, or the query in it, is missing.
    :param lance_conn_id: The Lance connection; ``None`` for absolute URIs without storage options.
        (templated)
    :param deferrable: Check once, then wait in the triggerer.
    """

    template_fields: Sequence[str] = (
        "uri",
        "query_id",
        "epoch",
        "consumer_id",
        "version",
        "lance_conn_id",
    )
    ui_color = "#d9ead3"

    def __init__(
        self,
        *,
        uri: str,
        query_id: str | None = None,
        epoch: int | str | None = None,
        advanced: bool = False,
        max_age: timedelta | None = None,
        consumer_id: str | None = None,
        version: int | str | None = None,
        on_missing: str = OnMissing.WAIT,
        lance_conn_id: str | None = LanceHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        conditions = (epoch is not None) + advanced + (max_age is not None)
        if (query_id is None) == (consumer_id is None):
            raise SpecError(
                "give exactly one of query_id, a query that writes the dataset, and consumer_id, "
                f"one that reads it; got query_id={query_id!r}, consumer_id={consumer_id!r}"
            )
        if consumer_id is None and (conditions != 1 or version is not None):
            raise SpecError(
                "give exactly one of epoch=<number>, advanced=True and max_age=<timedelta>; got "
                f"epoch={epoch!r}, advanced={advanced!r}, max_age={max_age!r}, version={version!r}"
            )
        if consumer_id is not None and conditions:
            raise SpecError(
                "a consumer reads versions and has no epochs here: give version=<number>, or "
                "nothing for the newest one; got "
                f"epoch={epoch!r}, advanced={advanced!r}, max_age={max_age!r}"
            )
        if consumer_id is not None and version is None and self.reschedule and not deferrable:
            raise SpecError(
                "with mode='reschedule' each poke is a new start, and the newest version would "
                "move on with each: give version=<number>, or deferrable=True"
            )
        self.uri = uri
        self.query_id = query_id
        self.epoch = epoch
        self.advanced = advanced
        self.max_age = max_age
        self.consumer_id = consumer_id
        self.version = version
        self.on_missing = OnMissing.parse(on_missing).value
        self.lance_conn_id = lance_conn_id
        self.deferrable = deferrable
        self._awaited: ConsumerCondition | None = None
        if is_mapped(self):
            return
        # Arguments without a template are checked when the DAG is parsed.
        check_dataset(uri, query_id or consumer_id or "", lance_conn_id)
        if not advanced and not is_open(epoch) and not is_open(version):
            self._asked()

    @cached_property
    def hook(self) -> LanceHook:
        """Return the hook of the Lance connection."""
        return LanceHook(self.lance_conn_id)

    @cached_property
    def _follower(self) -> Follower:
        on_missing = OnMissing.parse(self.on_missing)
        return Follower(self.hook, self.uri, self.query_id or "", on_missing)

    @cached_property
    def _consumer(self) -> ConsumerFollower:
        on_missing = OnMissing.parse(self.on_missing)
        return ConsumerFollower(self.hook, self.uri, self.consumer_id or "", on_missing)

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
                consumer_id=self.consumer_id,
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
                if isinstance(condition, ConsumerCondition):
                    return self._poke_consumer(condition)
                watermark = self._follower.look()
            except TransientError as error:
                self.log.warning("The store did not answer; asking again later. error=%s", error)
                return PokeReturnValue(is_done=False)
        self.log.info("Waiting for %s. %s", condition, describe(watermark))
        if watermark and condition.is_met(watermark, datetime.now(UTC)):
            return PokeReturnValue(is_done=True, xcom_value=seen(watermark))
        return PokeReturnValue(is_done=False)

    def _poke_consumer(self, condition: ConsumerCondition) -> PokeReturnValue:
        state = self._consumer.look()
        condition = self._awaited = condition.at(state)
        self.log.info("Waiting for %s. %s", condition, state)
        is_met = condition.is_met(state)
        return PokeReturnValue(is_done=is_met, xcom_value=state.shown() if is_met else None)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return what ended the wait, or raise an error that waiting cannot solve."""
        if event["status"] == "error":
            with no_retry_if_terminal():
                raise error_class(event["error"])(event["message"])
        found: dict[str, Any] = event["watermark" if self.consumer_id is None else "position"]
        self.log.info("The wait is over. seen=%s", found)
        return found

    def _condition(self, context: Context) -> EpochCondition | ConsumerCondition:
        if self._awaited is not None:
            return self._awaited
        if self.advanced:
            run = context["dag_run"]
            return EpochCondition(since=run.start_date or run.run_after)
        return self._asked()

    def _asked(self) -> EpochCondition | ConsumerCondition:
        """Return the condition in the form that holds for every run."""
        if self.consumer_id is not None:
            if self.version is None:
                return ConsumerCondition()
            return ConsumerCondition(self._number("version", self.version, positive))
        if self.max_age is not None:
            return EpochCondition(max_age=self.max_age)
        return EpochCondition(epoch=self._number("epoch", self.epoch, count))

    @staticmethod
    def _number(name: str, given: object, read: Callable[[Any], int]) -> int:
        try:
            # A rendered template may have whitespace around it.
            return read(given.strip() if isinstance(given, str) else given)
        except ValueError:
            raise SpecError(f"{name} must be a whole number, got {shown(given)}") from None
