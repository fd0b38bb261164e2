"""Check the streams into a dataset, and repair only what is provably safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_lance.compat import AirflowFailException
from airflow_provider_lance.diagnostics.check import CheckReport, check
from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.diagnostics.traces import find_traces
from airflow_provider_lance.exceptions import SpecError, TerminalError
from airflow_provider_lance.hooks.errors import no_retry_if_terminal
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.links.lance import LanceDatasetLink, dataset_url
from airflow_provider_lance.operators.checks import check_dataset, is_mapped, is_open
from airflow_provider_lance.operators.repair import (
    RepairAction,
    RepairRequest,
    RepairRunner,
    known_mapping,
)
from airflow_provider_lance.operators.task_state import task_key
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.decoding import shown

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["LanceRecoveryCheckOperator", "parse_severity", "parse_tolerance"]

_NEVER = "never"


class LanceRecoveryCheckOperator(BaseOperator):
    """
    Compare a dataset, the checkpoints of its streams and their drivers; report what is wrong.

    The task fails, without retries, if findings of the severity ``fail_on`` or above remain, and
    its error says what to type. The finding that a stream is healthy (LS000) never fails the task.
    The report is the return value, also of a task that fails; the XCom ``message`` is a text for a
    notifier. Only what ``repair`` names is repaired without asking. Anything else needs an argument
    that names the query and its epoch, and is done only while that still holds.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI. (templated)
    :param query_ids: The streaming queries to check; all by default. (templated)
    :param checkpoint_location: Where this worker reaches the checkpoint of the one query in
        ``query_ids``, if not where its driver recorded it. (templated)
    :param fail_on: ``info``, ``warning``, ``error``, ``critical``, or ``never``. (templated)
    :param repair: What may be repaired without asking: ``watermark`` (fold the epochs of history
        into the config) and ``owner`` (release an owner whose driver is proven dead). (templated)
    :param release: Release the owner of the one query in ``query_ids``: ``{"epoch": 41,
        "proven_dead": True}``. ``epoch`` is the epoch watermark that was seen, -1 for none;
        ``proven_dead`` states that a person has verified that the driver does not run. (templated)
    :param resolve_gap: Answer for the one epoch in doubt: ``{"epoch": 42, "landed": True}``;
        ``proven_dead`` as above. (templated)
    :param resolve_checkpoint: Continue the query from another checkpoint, in a new generation of
        epochs: ``{"epoch": 41, "location": "s3://bucket/checkpoints/orders"}``, with the epoch
        watermark that was seen; ``proven_dead`` as above. (templated)
    :param tolerance: The limits from which something counts as a problem: ``start``, ``silence``
        ``stall``, ``consumer_lag`` and ``consumer_retention`` as ``timedelta`` or seconds;
        ``small_fragments``, ``versions``, ``uncovered_rows``, ``unfolded`` and ``orphaned_bytes``.
        (templated)
    :param orphans: List all data files, to find those that no version references.
    :param lance_conn_id: The Lance connection; ``None`` for absolute URIs without storage options.
        (templated)
    """

    template_fields: Sequence[str] = (
        "uri",
        "query_ids",
        "checkpoint_location",
        "fail_on",
        "repair",
        "release",
        "resolve_gap",
        "resolve_checkpoint",
        "tolerance",
        "lance_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "release": "json",
        "resolve_gap": "json",
        "resolve_checkpoint": "json",
        "tolerance": "json",
    }
    operator_extra_links = (LanceDatasetLink(),)
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        uri: str,
        query_ids: Sequence[str] | None = None,
        checkpoint_location: str | None = None,
        fail_on: str = "error",
        repair: Sequence[str] = (),
        release: Mapping[str, Any] | None = None,
        resolve_gap: Mapping[str, Any] | None = None,
        resolve_checkpoint: Mapping[str, Any] | None = None,
        tolerance: Mapping[str, Any] | None = None,
        orphans: bool = True,
        lance_conn_id: str | None = LanceHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.uri = uri
        self.query_ids = query_ids
        self.checkpoint_location = checkpoint_location
        self.fail_on = fail_on
        self.repair = repair
        self.release = release
        self.resolve_gap = resolve_gap
        self.resolve_checkpoint = resolve_checkpoint
        self.tolerance = tolerance
        self.orphans = orphans
        self.lance_conn_id = lance_conn_id
        self.dataset_url = ""
        if not is_mapped(self):
            self._check_arguments()

    @cached_property
    def hook(self) -> LanceHook:
        """Return the hook of the Lance connection."""
        return LanceHook(self.lance_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        with no_retry_if_terminal():
            limit, tolerance = parse_severity(self.fail_on), parse_tolerance(self.tolerance)
            request = self._request()
            uri = self.hook.resolve(self.uri)
            address = dataset_url(uri, self.hook.store.endpoint)
            LanceDatasetLink.show(self, context["ti"], address)
            port = self.hook.open(uri)
            self._refuse_unknown(port)
            report = self._check(port, tolerance)
            runner = RepairRunner(
                port,
                request,
                by=task_key(context),
                checkpoint_location=self.checkpoint_location,
                connection_arguments=self.hook.connection_arguments,
                log=self.log,
            )
            # Report the evidence before anything is changed, and before anything can fail.
            document = self._tell(context, report)
            try:
                actions = runner.decide()
            except TerminalError as error:
                self._show(report)
                self._tell(context, report, refusal=f"{type(error).__name__}: {error}")
                raise
            actions += runner.repair(report)
            if actions:
                report = self._check(port.latest(), tolerance)
                document = self._tell(context, report, actions)
            self._show(report)
        if limit is not None and report.at_or_above(limit):
            least = min(limit, Severity.WARNING)
            raise AirflowFailException(_message(report, actions, least=least))
        return document

    def _check_arguments(self) -> None:
        """Check, when the DAG is parsed, the arguments that hold no template."""
        if not is_open(self.fail_on):
            parse_severity(self.fail_on)
        if not is_open(self.tolerance):
            parse_tolerance(self.tolerance)
        decisions = (self.repair, self.release, self.resolve_gap, self.resolve_checkpoint)
        if not any(map(is_open, (self.query_ids, self.checkpoint_location, *decisions))):
            self._request()
        for query_id in () if is_open(self.query_ids) else self._query_ids():
            require_query_id(query_id)
        check_dataset(self.uri, "any", self.lance_conn_id)

    def _request(self) -> RepairRequest:
        query_ids = self._query_ids()
        if self.checkpoint_location and len(query_ids) != 1:
            raise SpecError(
                "checkpoint_location is the checkpoint of one query: name it, and only it, in "
                f"query_ids; got {query_ids or 'none, which means all'}"
            )
        return RepairRequest.parse(
            query_ids=query_ids,
            repair=self.repair,
            release=self.release,
            resolve_gap=self.resolve_gap,
            resolve_checkpoint=self.resolve_checkpoint,
        )

    def _query_ids(self) -> list[str]:
        if isinstance(self.query_ids, str):
            raise SpecError(f"query_ids must be a list, got {self.query_ids!r}")
        return list(self.query_ids or ())

    def _refuse_unknown(self, port: LanceDatasetPort) -> None:
        """Refuse a misspelt query: without a trace, it would never have a finding."""
        known = find_traces(port)
        unknown = [each for each in self._query_ids() if each not in known]
        # With its checkpoint given, there is something to compare the dataset with.
        if unknown and not self.checkpoint_location:
            raise SpecError(
                f"{port.uri} has no trace of the queries {unknown}; it knows {known}. Correct "
                "query_ids, or leave it out to check all of them. If the dataset was recreated, "
                "name the query's checkpoint in checkpoint_location"
            )

    def _check(self, port: LanceDatasetPort, tolerance: Tolerance) -> CheckReport:
        return check(
            port,
            self._query_ids(),
            checkpoint_location=self.checkpoint_location,
            storage_options=self.hook.storage_options,
            tolerance=tolerance,
            connection_arguments=self.hook.connection_arguments,
            airflow_url=self.hook.airflow_url,
            orphans=self.orphans,
        )

    def _show(self, report: CheckReport) -> None:
        for line in report.lines():
            self.log.info("%s", line)

    def _tell(
        self,
        context: Context,
        report: CheckReport,
        actions: Sequence[RepairAction] = (),
        *,
        refusal: str = "",
    ) -> dict[str, Any]:
        """Push the report to XCom, which a failing task can do too; return it."""
        document = report.to_json() | {"repaired": [each.to_json() for each in actions]}
        context["ti"].xcom_push("return_value", document)
        context["ti"].xcom_push("message", _message(report, actions, refusal))
        return document


def _message(
    report: CheckReport,
    actions: Sequence[RepairAction] = (),
    refusal: str = "",
    least: Severity = Severity.WARNING,
) -> str:
    """Return the text for a notifier: what is wrong now, and what was done about it."""
    lines = [report.message(least), *(f"{action.outcome}: {action.sentence}" for action in actions)]
    if refusal:
        lines.append(f"Refused: {refusal}")
    return "\n".join(lines)


def parse_severity(value: object) -> Severity | None:
    """Return the severity of that name, ``None`` for ``never``.

    :raises SpecError: there is no such severity.
    """
    if isinstance(value, Severity):
        return value
    known = {each.label: each for each in Severity}
    word = value.strip().lower() if isinstance(value, str) else ""
    if word == _NEVER:
        return None
    if word not in known:
        raise SpecError(f"fail_on must be one of {[*known, _NEVER]}, got {shown(value)}")
    return known[word]


def parse_tolerance(given: object) -> Tolerance:
    """Return the tolerance with the given values in place of its defaults.

    Times may be a ``timedelta`` or seconds.

    :raises SpecError: an unknown name, or not a number above 0.
    """
    usual = Tolerance()
    if given is None:
        return usual
    known = {each.name: type(getattr(usual, each.name)) for each in fields(Tolerance)}
    values: dict[str, Any] = {}
    for name, value in known_mapping(given, "tolerance", list(known)).items():
        number = value.total_seconds() if isinstance(value, timedelta) else value
        try:
            values[name] = known[name](number)
            positive = values[name] > 0 and not isinstance(number, bool)
        except (TypeError, ValueError, OverflowError):
            positive = False
        if not positive:
            raise SpecError(f"tolerance: {name} must be a number above 0, got {shown(value)}")
    return Tolerance(**values)
