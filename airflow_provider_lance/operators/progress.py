"""Follow a driver by the heartbeat it writes beside its checkpoint."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

__all__ = ["HeartbeatWatcher", "progress_line"]

_SINK = {
    "version": "version",
    "rows": "rows",
    "totalRows": "totalRows",
    "commitMs": "commitMs",
}
_SPARK = {"processedRowsPerSecond": "rowsPerSecond", "batchDuration": "batchMs"}


def progress_line(heartbeat: Mapping[str, Any]) -> str:
    """Return one line about the newest epoch; whatever the heartbeat lacks is left out."""
    sink, spark = _part(heartbeat, "sink"), _part(heartbeat, "progress")
    pairs = [(label, sink.get(name)) for name, label in _SINK.items()]
    pairs += [(label, spark.get(name)) for name, label in _SPARK.items()]
    tail = " ".join(f"{label}={_number(value)}" for label, value in pairs if value is not None)
    return f"Epoch {sink.get('epoch')} committed. {tail}".rstrip()


class HeartbeatWatcher:
    """Look at a heartbeat now and then, from a thread of its own, while the block runs.

    What it does is worth a log line and never a task: every error of reading is reported once as a
    warning and then kept to the debug log.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any] | None],
        on_ui_address: Callable[[str], None],
        *,
        interval: float,
        log: Logger,
    ) -> None:
        self._read, self._on_ui_address = read, on_ui_address
        self._interval, self._log = interval, log
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lance-heartbeat", daemon=True)
        self._epoch: object = None
        self._ui_address: object = None
        self._warned = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        # A store that hangs must not keep the task; the thread is a daemon.
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            self._look()
        self._look()  # the last heartbeat holds the last epoch

    def _look(self) -> None:
        try:
            heartbeat = self._read()
            if heartbeat:
                self._show(heartbeat)
        except Exception as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            self._log.log(level, "Progress cannot be read; the stream goes on. error=%s", error)

    def _show(self, heartbeat: Mapping[str, Any]) -> None:
        epoch = _part(heartbeat, "sink").get("epoch")
        if epoch is not None and epoch != self._epoch:
            self._epoch = epoch
            self._log.info(progress_line(heartbeat))
        address = _part(heartbeat, "driver").get("uiAddress")
        if address and address != self._ui_address:
            self._ui_address = address
            self._on_ui_address(address)


def _part(heartbeat: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = heartbeat.get(name)
    return part if isinstance(part, Mapping) else {}


def _number(value: object) -> object:
    return round(value, 1) if isinstance(value, float) else value
