"""What a notifier sends: one alert as a chat message, an e-mail and JSON; pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Alert", "email_html", "slack_blocks", "webhook_document"]

_HEADER = 150
"""The most characters of a header in a Slack message."""
_SECTION = 2_900
"""The characters of text in a section; Slack takes 3,000, escapes and all."""
_SECTIONS = 10


@dataclass(frozen=True, slots=True)
class Alert:
    """One message: ``headline`` says what happened, ``text`` what the check says of the stream.

    ``severity`` is that of the worst finding, or ``unknown`` if there was no answer. ``log_url`` is
    empty if there is no log.
    """

    headline: str
    text: str
    severity: str
    uri: str = ""
    dag_id: str = ""
    task_id: str = ""
    run_id: str = ""
    log_url: str = ""
    report: Mapping[str, Any] | None = None

    @property
    def subject(self) -> str:
        """Return the headline on one line, with the severity."""
        return f"[{self.severity}] {' '.join(self.headline.split())}"


def slack_blocks(alert: Alert) -> list[dict[str, Any]]:
    """Return an alert as blocks of Slack's; other chats with such webhooks show them, too."""
    title = {"type": "plain_text", "text": alert.subject[:_HEADER]}
    blocks: list[dict[str, Any]] = [{"type": "header", "text": title}]
    sections = list(_sections(alert.text))
    texts = [{"type": "mrkdwn", "text": f"```{each}```"} for each in sections[:_SECTIONS]]
    blocks += [{"type": "section", "text": text} for text in texts]
    links = [f"<{_slack(alert.log_url)}|Log>"] if alert.log_url else []
    if len(sections) > _SECTIONS:
        links.append("The rest did not fit: see `lance-stream check`")
    if links:
        element = {"type": "mrkdwn", "text": " · ".join(links)}
        blocks.append({"type": "context", "elements": [element]})
    return blocks


def email_html(alert: Alert) -> str:
    """Return the body of an e-mail."""
    log = f'<p><a href="{html.escape(alert.log_url)}">Log</a></p>' if alert.log_url else ""
    return f"<h3>{html.escape(alert.headline)}</h3><pre>{html.escape(alert.text)}</pre>{log}"


def webhook_document(alert: Alert) -> dict[str, Any]:
    """Return an alert as JSON; ``report`` is the check's own document."""
    return {
        "headline": alert.headline,
        "text": alert.text,
        "severity": alert.severity,
        "uri": alert.uri,
        "dagId": alert.dag_id,
        "taskId": alert.task_id,
        "runId": alert.run_id,
        "logUrl": alert.log_url,
        "report": alert.report,
    }


def _sections(text: str) -> Iterator[str]:
    """Yield the text in parts that fit, each of whole lines where lines are not too long."""
    part = ""
    for line in _slack(text).splitlines(keepends=True):
        while line:
            if part and len(part) + len(line) > _SECTION:
                yield part
                part = ""
            part, line = part + line[:_SECTION], line[_SECTION:]
    if part:
        yield part


def _slack(text: str) -> str:
    """Escape what Slack reads as markup: its three characters, and the end of a block of code."""
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, name)
    return text.replace("```", "'''")
