"""One launch of one query, and its driver, wherever it runs; a value that travels as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from airflow_provider_lance.backends.base import Driver
from airflow_provider_lance.backends.cluster import ClusterDriver
from airflow_provider_lance.drivers.local import LocalDriver
from airflow_provider_lance.protocol.decoding import Reader, moment
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["Launch", "same_task"]

_DRIVERS = (LocalDriver, ClusterDriver)


@dataclass(frozen=True, slots=True)
class Launch(JsonRecord):
    """One launch of one query: which query it belongs to, and where its driver can be found.

    ``driver`` is ``None`` if only the heartbeat shows it. ``fingerprint`` is equal for two launches
    of the same specification, empty if it is unknown.
    """

    launch_id: str
    query_id: str
    uri: str
    checkpoint_location: str
    launched_at: str
    launched_by: str = ""
    fingerprint: str = ""
    driver: Driver | None = None

    json_name = "a launch"
    json_readers: ClassVar[Mapping[str, Reader]] = {"launched_at": moment}

    def alive(self) -> bool | None:
        """Return whether the driver's process exists; ``None`` if that is unknown here."""
        return self.driver.alive() if self.driver else None

    def kill(self) -> bool:
        """Kill exactly this driver if that is possible from here; return whether it was."""
        return self.driver.kill() if self.driver else False

    def exit_status(self) -> int | None:
        """Return the driver's exit status, negative for a signal; ``None`` if it is unknown."""
        return self.driver.exit_status() if self.driver else None

    @property
    def is_here(self) -> bool:
        """Return whether the driver runs on this host."""
        return self.driver is not None and self.driver.is_here

    @property
    def polls_remotely(self) -> bool:
        """Return whether each poll is a request to a cluster."""
        return self.driver is not None and self.driver.polls_remotely

    def is_ending(self) -> bool:
        """Return whether the driver has exited and its exit status is about to be noted."""
        return self.driver is not None and self.driver.is_ending()

    def stop(self, by: str) -> bool:
        """Request an orderly stop, without its dataset; return whether it was delivered."""
        return self.driver is not None and self.driver.stop(by)

    def log(self) -> Path | None:
        """Return the path of the driver's log, ``None`` if that is not on this host."""
        return self.driver.log() if self.driver else None

    def where(self) -> str:
        """Return the driver's place as text."""
        return self.driver.where() if self.driver else "a place known only by its heartbeat"

    def found_at(self, driver: Driver | None) -> Self:
        """Return this launch with its driver."""
        return replace(self, driver=driver)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a trigger's arguments and Airflow's task state."""
        document = JsonRecord.to_json(self)
        del document["driver"]
        return document | ({self.driver.kind: self.driver.to_json()} if self.driver else {})

    @classmethod
    def read_json(cls, given: object) -> Self:
        """Read what :meth:`to_json` made.

        :raises ValueError: a part is missing or has another form.
        """
        read = cls(**cls.read_arguments(given))
        for kind in _DRIVERS:
            if isinstance(given, Mapping) and (known := given.get(kind.kind)):
                read = replace(read, driver=kind.read_json(known))
        return read


def same_task(one: str, other: str) -> bool:
    """Return whether two ``launchedBy`` texts name tries of one task instance."""
    return bool(one) and one.rpartition("#")[0] == other.rpartition("#")[0]
