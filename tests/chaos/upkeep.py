"""What others do to a dataset, beside a driver and between two: compaction, cleanup, commits."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    HistoryGapError,
    TransientError,
)
from airflow_provider_lance.maintenance.cleanup import Retention, clean_up
from airflow_provider_lance.maintenance.compaction import compact
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.port import Configure
from tests.chaos.plan import Between
from tests.chaos.store import Place

BURST, BURST_S3 = 110, 6
"""Commits of others between two drivers: on disk more than the classic design looks back."""

BESIDE = Retention(older_than=0, keep_active=90)
"""Beside a driver, versions are kept for longer than it goes without looking for itself."""

ALONE = Retention(older_than=0, keep_active=0)

SMALL = {"target_rows_per_fragment": 500}


@dataclass
class Upkeep:
    """Compacts and cleans up beside a driver, by turns, until its block is left.

    ``gap`` says that evidence was destroyed and nobody has answered for it yet: cleanup refuses.
    ``outcomes`` counts what became of it; an error that may not be is in ``unexpected``.
    """

    place: Place
    wanted: bool
    gap: bool
    retention: Retention = BESIDE
    outcomes: Counter[str] = field(default_factory=Counter)
    unexpected: str = ""

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def __enter__(self) -> Upkeep:
        if self.wanted:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self.wanted:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(1.5) and not self.unexpected:
            self.once()

    def once(self) -> None:
        """Compact, then clean up; count the outcome."""
        try:
            port = self.place.open()
            compact(port, SMALL)
            cleaned = clean_up(port, self.retention, self.place.options)
            self.outcomes["done"] += 1
            self.outcomes["versions removed"] += cleaned.versions
        except DatasetNotFoundError:
            self.outcomes["nothing there"] += 1
        except TransientError as error:
            self.outcomes[type(error).__name__] += 1
        except HistoryGapError as error:
            self.outcomes[type(error).__name__] += 1
            self.unexpected = "" if self.gap else f"maintenance: {error}"
        except Exception as error:
            self.unexpected = f"maintenance: {type(error).__name__}: {error}"


def between(place: Place, what: Between, *, gap: bool) -> None:
    """Do something to a dataset that no driver works on; one that is not there is left alone.

    :param gap: whether history has a gap that nobody has answered for yet.
    :raises HistoryGapError: cleanup found a gap, and none should be there.
    """
    try:
        port = place.open()
    except DatasetNotFoundError:
        return
    # The S3 server itself answers 500 now and then, when objects vanish while it lists them.
    with suppress(TransientError, *[HistoryGapError] * (gap and what is Between.CLEANUP)):
        match what:
            case Between.COMPACT:
                compact(port, SMALL)
            case Between.CLEANUP:
                clean_up(port, ALONE, place.options)
            case Between.COMMITS:
                burst(port, BURST_S3 if place.server else BURST)
            case Between.NOTHING:
                pass


def burst(port: LanceDatasetPort, commits: int) -> LanceDatasetPort:
    """Let somebody commit who has nothing to do with the stream."""
    for number in range(commits):
        port = port.commit(Configure({"somebody.else": str(number)}))
    return port


def destroy_evidence(place: Place) -> None:
    """Delete all versions but the newest, as a cleanup does that knows nothing of streams."""
    port = burst(place.open(), 2)
    versions = [each["version"] for each in port.dataset.versions()]
    port.dataset.cleanup_old_versions(versions=[each for each in versions if each < port.version])
