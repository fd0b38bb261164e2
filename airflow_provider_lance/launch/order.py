"""What a keeper is told: it comes through a pipe, for some of it is secret."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HOST_SHUTDOWN", "Order", "StopOrder"]

HOST_SHUTDOWN = "shutdown of host"
"""How a stop is signed that came to a keeper from nobody of ours."""


@dataclass(frozen=True, slots=True)
class StopOrder:
    """How a driver is asked to stop in order: through its dataset, as that launch.

    ``by`` says who asks; the keeper finds it out when it comes to that.
    """

    uri: str
    query_id: str
    launch_id: str
    by: str = ""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Order:
    """What to run, with which environment, and how to end it.

    ``redact`` are the texts that must not get into a log; ``grace`` is how many seconds a driver
    has between being asked to stop and being killed.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    redact: Sequence[str] = field(repr=False)
    grace: float
    stop: StopOrder | None

    def dumps(self) -> str:
        """Return the order as one JSON document."""
        stop = self.stop and {
            "uri": self.stop.uri,
            "storageOptions": dict(self.stop.storage_options),
            "queryId": self.stop.query_id,
            "launchId": self.stop.launch_id,
            "by": self.stop.by,
        }
        document = {
            "command": list(self.command),
            "environment": dict(self.environment),
            "redact": list(self.redact),
            "grace": self.grace,
            "stop": stop,
        }
        return json.dumps(document)

    @classmethod
    def loads(cls, text: str | bytes) -> Order:
        """Read what :meth:`dumps` made.

        :raises ValueError, KeyError: it is cut short, or no order.
        """
        document: dict[str, Any] = json.loads(text)
        stop = document["stop"]
        return cls(
            command=document["command"],
            environment=document["environment"],
            redact=document["redact"],
            grace=document["grace"],
            stop=stop
            and StopOrder(
                uri=stop["uri"],
                query_id=stop["queryId"],
                launch_id=stop["launchId"],
                by=stop["by"],
                storage_options=stop["storageOptions"],
            ),
        )
