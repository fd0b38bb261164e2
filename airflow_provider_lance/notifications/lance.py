"""Notifiers that check a stream and send what is wrong with it, and what to type."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_provider_lance.compat import redact
from airflow_provider_lance.diagnostics.check import CheckReport, check
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.notifications.templates import (
    Alert,
    email_html,
    slack_blocks,
    webhook_document,
)
from airflow_provider_lance.protocol.decoding import without_credentials
from airflow_provider_lance.triggers.threads import Pool, in_thread

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["LanceEmailNotifier", "LanceNotifier", "LanceSlackNotifier", "LanceWebhookNotifier"]

_SAID = {"failed": "failed", "up_for_retry": "failed and will be retried", "success": "succeeded"}
_UNKNOWN = "unknown"
_LONGEST = 500


class LanceNotifier(BaseNotifier, ABC):
    """
    Check a dataset's streams, and send the result; the base of the notifiers of this module.

    For a notifier of your own, write ``send(alert)``. A check that fails or takes too long fails no
    callback: the message then says why nothing is known.

    :param uri: The dataset; by default that of the task whose callback it is. (templated)
    :param query_id: The streaming query; by default the task's, otherwise all queries. (templated)
    :param lance_conn_id: The Lance connection; by default the task's, or ``lance_default``.
        (templated)
    :param timeout: The most seconds that the check may take.
    """

    template_fields: Sequence[str] = ("uri", "query_id", "lance_conn_id")

    def __init__(
        self,
        *,
        uri: str | None = None,
        query_id: str | None = None,
        lance_conn_id: str | None = None,
        timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.uri = uri
        self.query_id = query_id
        self.lance_conn_id = lance_conn_id
        self.timeout = timeout

    @abstractmethod
    def send(self, alert: Alert) -> None:
        """Send one alert."""

    def notify(self, context: Context) -> None:
        """Check, then send."""
        self.send(self.alert(context))

    async def async_notify(self, context: Context) -> None:
        """Check, then send, without blocking the triggerer."""
        await in_thread(Pool.LOOKS, self.notify, context)

    def alert(self, context: Mapping[str, Any]) -> Alert:
        """Return what is to be sent; never raises for what cannot be read."""
        names = _names(context)
        headline, problem = _headline(context, names), _first_line(context.get("exception"))
        uri, unread = self.uri or "", ""
        report: CheckReport | None = None
        try:
            uri, query_ids, conn_id = self._place(context)
            if uri:
                hook = LanceHook(conn_id)
                uri = hook.resolve(uri)
                report = self._checked(hook, uri, query_ids)
            else:
                unread = "Not checked: neither the notifier nor the task names a dataset."
        except Exception as error:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            unread = f"Lance {uri}: the check had no answer, so nothing is known. {what}"
        text = "\n".join(filter(None, (problem, report.message() if report else unread)))
        return Alert(
            headline=str(redact(headline)),
            text=without_credentials(str(redact(text))),
            severity=report.worst.label if report else _UNKNOWN,
            uri=without_credentials(uri),
            report=_shown(report.to_json()) if report else None,
            **names,
        )

    def _place(self, context: Mapping[str, Any]) -> tuple[str, list[str], str | None]:
        """Return dataset, queries and connection: the notifier's own, otherwise the task's."""
        if self.uri:
            own = self.lance_conn_id or LanceHook.default_conn_name
            return self.uri, [self.query_id] if self.query_id else [], own
        # Where the task's process has died, its fields were not rendered.
        uri, query_id, conn_id = (
            self._of_task(name, context) for name in ("uri", "query_id", "lance_conn_id")
        )
        query_id = self.query_id or query_id
        return uri or "", [query_id] if query_id else [], self.lance_conn_id or conn_id

    def _of_task(self, name: str, context: Any) -> str | None:
        value = getattr(context.get("task"), name, None)
        return str(self.render_template(value, context)) if isinstance(value, str) else None

    def _checked(self, hook: LanceHook, uri: str, query_ids: list[str]) -> CheckReport:
        """Check within the time; a call of Lance that hangs is left in its thread."""
        storage_options, answer = hook.storage_options, Future[CheckReport]()

        def run() -> None:
            try:
                made = check(
                    hook.open(uri),
                    query_ids,
                    orphans=False,
                    storage_options=storage_options,
                    connection_arguments=hook.connection_arguments,
                    airflow_url=hook.airflow_url,
                )
            except BaseException as error:  # also a panic of Lance
                answer.set_exception(error)
            else:
                answer.set_result(made)

        threading.Thread(target=run, name=f"check {uri}", daemon=True).start()
        try:
            return answer.result(self.timeout)
        except TimeoutError:
            if answer.done():
                raise
            raise TimeoutError(f"no answer within {self.timeout:g} s") from None


class LanceSlackNotifier(LanceNotifier):
    """
    Send the check to a chat, through an incoming webhook as Slack has it.

    Needs ``apache-airflow-providers-slack``; the webhook's token is in its connection.

    :param slack_webhook_conn_id: The connection of type ``slackwebhook``.
    """

    def __init__(self, *, slack_webhook_conn_id: str = "slack_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slack_webhook_conn_id = slack_webhook_conn_id

    def send(self, alert: Alert) -> None:
        """Post the message."""
        from airflow.providers.slack.hooks.slack_webhook import SlackWebhookHook

        hook = SlackWebhookHook(slack_webhook_conn_id=self.slack_webhook_conn_id)
        hook.send(text=alert.subject, blocks=slack_blocks(alert))


class LanceEmailNotifier(LanceNotifier):
    """
    Send the check as an e-mail.

    Needs ``apache-airflow-providers-smtp``.

    :param to: One address, or several. (templated)
    :param from_email: The sender; by default the connection's. (templated)
    :param smtp_conn_id: The connection of type ``smtp``.
    """

    template_fields: Sequence[str] = (*LanceNotifier.template_fields, "to", "from_email")

    def __init__(
        self,
        *,
        to: str | Sequence[str],
        from_email: str | None = None,
        smtp_conn_id: str = "smtp_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.to = to
        self.from_email = from_email
        self.smtp_conn_id = smtp_conn_id

    def send(self, alert: Alert) -> None:
        """Send the mail."""
        from airflow.providers.smtp.hooks.smtp import SmtpHook

        with SmtpHook(smtp_conn_id=self.smtp_conn_id) as hook:
            hook.send_email_smtp(
                to=self.to if isinstance(self.to, str) else list(self.to),
                from_email=self.from_email or hook.from_email,
                subject=alert.subject,
                html_content=email_html(alert),
            )


class LanceWebhookNotifier(LanceNotifier):
    """
    Post the check as JSON.

    Needs ``apache-airflow-providers-http``; secrets belong into its connection.

    :param http_conn_id: The connection of type ``http``: the address, and headers in its extra.
    :param endpoint: The path below the connection's address. (templated)
    """

    template_fields: Sequence[str] = (*LanceNotifier.template_fields, "endpoint")

    def __init__(
        self, *, http_conn_id: str = "http_default", endpoint: str = "", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.http_conn_id = http_conn_id
        self.endpoint = endpoint

    def send(self, alert: Alert) -> None:
        """Post the document."""
        from airflow.providers.http.hooks.http import HttpHook

        hook = HttpHook(method="POST", http_conn_id=self.http_conn_id)
        options = {"timeout": self.timeout}
        hook.run(self.endpoint or None, json=webhook_document(alert), extra_options=options)


def _shown(value: Any) -> Any:
    """Return JSON as it may leave: masked as in a log, and without credentials in a URI."""
    match value:
        case str():
            return without_credentials(str(redact(value)))
        case Mapping():
            return {name: _shown(each) for name, each in value.items()}
        case list() | tuple():
            return [_shown(each) for each in value]
    return value


def _names(context: Mapping[str, Any]) -> dict[str, str]:
    """Return which task instance, or at a deadline which run, it is about."""
    ti, run = context.get("ti"), context.get("dag_run")
    if isinstance(run, Mapping):  # at a deadline, the run as Airflow's API shows it
        return {"dag_id": str(run.get("dag_id")), "run_id": str(run.get("dag_run_id"))}

    def of(name: str) -> str:
        return str(getattr(ti, name, None) or getattr(run, name, None) or "")

    return {name: of(name) for name in ("dag_id", "task_id", "run_id", "log_url")}


def _headline(context: Mapping[str, Any], names: Mapping[str, str]) -> str:
    run = f", run {names['run_id']}" if names["run_id"] else ""
    if "deadline" in context:
        return f"DAG {names['dag_id']} missed its deadline{run}"
    if not names.get("task_id"):
        reason = f": {context['reason']}" if context.get("reason") else ""
        return f"DAG {names['dag_id'] or '?'}{reason}{run}"
    state = str(getattr(context.get("ti"), "state", None) or "")
    said = _SAID.get(state) or state or ("failed" if context.get("exception") else "ran")
    return f"Task {names['dag_id']}.{names['task_id']} {said}{run}"


def _first_line(error: object) -> str:
    """Return an error in one line; the findings say the rest."""
    lines = str(error).strip().splitlines() if error else []
    name = f"{type(error).__name__}: " if isinstance(error, BaseException) else ""
    return f"{name}{lines[0]}"[:_LONGEST] if lines else ""
