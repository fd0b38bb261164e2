"""Side tables: further datasets that a query's epochs write before the query's own table.

Each has a :class:`.session.DriverSession` of its own, under the same query id, and so is exact by
itself. The own table commits last: if it has an epoch, each side table has its rows of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    DatasetRestoredError,
    HistoryGapError,
    LanceStreamError,
    SideTableError,
)
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.epoch_plan import EpochPlan
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.option_parsers import contains
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.sides import decode_sides

__all__ = ["SideTables"]

log = logging.getLogger(__name__)


class SideTables:
    """The side tables of one driver's session; a query without any pays nothing.

    Call :meth:`prepare` and :meth:`take_over` after the session's own. In an epoch, call
    :meth:`begin` for each side table that gets rows, then :meth:`claim`, then commit the own table.
    :meth:`release` releases all of them and the own table.
    """

    def __init__(
        self, main: DriverSession, open_port: Callable[[str], DatasetPort], *, digest: str
    ) -> None:
        """Store the arguments; no I/O.

        :param main: the session of the query's own table, which commits last.
        :param open_port: opens a dataset at its newest version.
        :param digest: a SHA-256 of the options that decide which rows go where. A replay must send
            the same rows the same way.
        """
        self._main, self._open = main, open_port
        self.digest = digest
        """What every side table's epoch is stamped with."""
        self._sides: dict[str, DriverSession] = {}
        self._claimed = False
        self._answered = False

    @property
    def sessions(self) -> Mapping[str, DriverSession]:
        """Return the session of each side table that is open, by its name."""
        return self._sides

    # --------------------------------------------------------------------------------------- start

    def prepare(
        self, expected: Mapping[str, str] | Callable[[str], str | None] = lambda _: None
    ) -> None:
        """Open every registered side table, and refuse what cannot be exact; writes nothing.

        :param expected: the URI that the options give for a name; a name that they do not give
            keeps its registered one.
        :raises SideTableError: one is missing, has no trace of the query, is registered with
            another URI, or has an epoch that was divided by other options.
        :raises LanceStreamError: as :meth:`.session.DriverSession.prepare`, with the table's name.
        """
        wanted = expected if callable(expected) else expected.get
        for name, uri in decode_sides(self._main.port.config, self._main.query_id).items():
            self._refuse_moved(name, uri, wanted(name))
            try:
                port = self._open(uri)
            except DatasetNotFoundError as error:
                raise self._lost(name, uri, f"is missing ({error})") from error
            side = self._joined(name, port)
            if not (side.known or side.answered):
                raise self._lost(name, uri, f"has no trace of the query at version {port.version}")
            self._sides[name] = side

    def take_over(self) -> None:
        """Claim each registered side table from an owner that did not release.

        Call it after the main session's; it does nothing if that one did nothing.

        :raises TerminalError, TransientError: as :meth:`.session.DriverSession.claim`.
        """
        if self._main.owner is not None:
            self.claim(NO_EPOCH)

    def recheck(self) -> None:
        """Read the checkpoint again for each; see :meth:`.session.DriverSession.recheck`."""
        for name, side in self._sides.items():
            with self._named(name, side.port.uri):
                side.recheck()

    # --------------------------------------------------------------------------------------- epoch

    def claim(self, epoch_id: int) -> None:
        """Fence earlier drivers off every registered side table, once in a run.

        Without side tables it does nothing. A side table that was released is claimed when it gets
        its first rows.

        :raises TerminalError, TransientError: as :meth:`.session.DriverSession.claim`.
        """
        if self._claimed or not self._sides:
            return
        if self._main.owner is None:
            self._main.claim(epoch_id)
        for name, side in self._sides.items():
            if side.must_claim:
                self._claim(name, side, epoch_id)
        self._claimed = True

    def begin(
        self, name: str, epoch_id: int, open_port: Callable[[], DatasetPort]
    ) -> EpochPlan | None:
        """Return the plan of a side table's rows, ``None`` if it has this epoch already.

        The first rows of a name claim its dataset and register it in the query's own table.

        :param open_port: opens the dataset, or creates it; called before the name's first rows.
        :raises SideTableError: the epoch is there, divided by other options.
        :raises TerminalError, TransientError: as :meth:`.session.DriverSession.claim`.
        """
        if self._main.owner is None:
            self._main.claim(epoch_id)
        self.claim(epoch_id)
        side = self._sides.get(name)
        if side is None:
            side = self._join(name, epoch_id, open_port())
        elif side.owner is None:
            self._claim(name, side, epoch_id)
        with self._named(name, side.port.uri):
            side.identify(self._main.driver)
            plan = side.begin(epoch_id)
        if plan.decision is Decision.FULL_COMMIT:
            return plan
        self._refuse_other_digest(name, side, epoch_id)
        return None

    def _join(self, name: str, epoch_id: int, port: DatasetPort) -> DriverSession:
        """Open a side table that the own table does not know yet: claim it, then register it."""
        side = self._joined(name, port)
        self._claim(name, side, epoch_id)
        self._main.register_side(name, port.uri)
        self._sides[name] = side
        log.info("Side table registered. query_id=%s name=%s uri=%s", side.query_id, name, port.uri)
        return side

    def _joined(self, name: str, port: DatasetPort) -> DriverSession:
        """Return a side table's prepared session.

        An answer of the user about epochs in doubt is for one dataset: the query's own if that
        needs it, otherwise the first side table that does.
        """
        with self._named(name, port.uri):
            side = self._main.beside(port)
            try:
                side.prepare()
            except (DatasetRestoredError, HistoryGapError):
                if self._answered or self._main.answered:
                    raise
                side = self._main.beside(port, answers=True)
                side.prepare()
                self._answered = True
            self._refuse_ahead(name, side)
            return side

    def _claim(self, name: str, side: DriverSession, epoch_id: int) -> None:
        """Claim a side table as the owner of the own table, and make sure that it still is.

        A driver that was fenced there must not take a side table from its successor.
        """
        self._main.confirm()
        with self._named(name, side.port.uri):
            side.identify(self._main.driver)
            side.claim(epoch_id)
        self._main.confirm()
        self._refuse_ahead(name, side)

    # ----------------------------------------------------------------------------------------- end

    def release(self) -> bool:
        """Release every side table, then the query's own.

        The own table stays ``active`` if one of them could not be released: the next driver then
        fences all of them.

        :raises StorageUnavailableError: the store did not answer.
        """
        released = True
        for side in self._sides.values():
            if side.owner is not None:
                side.note_done(self._main)
                released &= side.release()
        return released and self._main.release()

    # -------------------------------------------------------------------------------------- refuse

    @contextmanager
    def _named(self, name: str, uri: str) -> Iterator[None]:
        """Name the side table in an error of its own session."""
        try:
            yield
        except LanceStreamError as error:
            table = self._main.port.uri
            raise type(error)(f"side table {name!r} of {table}, at {uri}: {error}") from error

    def _refuse_moved(self, name: str, uri: str, wanted: str | None) -> None:
        if wanted is not None and not (contains(uri, wanted) and contains(wanted, uri)):
            raise SideTableError(
                f"side table {name!r} of {self._main.port.uri} is registered at {uri}, and the "
                f"options give {wanted}. Give {uri} in the options. To begin another one: "
                f"{self._forget(name)}"
            )

    def _lost(self, name: str, uri: str, why: str) -> SideTableError:
        return SideTableError(
            f"side table {name!r} of {self._main.port.uri}, at {uri}, {why}: it was dropped, "
            "recreated or restored, and rows that query "
            f"{self._main.query_id!r} wrote there are gone. Bring it back. To continue without "
            f"those rows: {self._forget(name)}"
        )

    def _forget(self, name: str) -> str:
        main = self._main
        words = ("resolve", "side", main.port.uri, main.query_id, "--name", name, "--yes")
        return f"{command_line(*words)}; the table begins empty"

    def _refuse_ahead(self, name: str, side: DriverSession) -> None:
        """Refuse an epoch in flight that was divided by other options: it would be divided twice.

        The side table has it, and neither the own table nor Spark's log does.
        """
        if not side.starts_generation and side.watermark > self._main.done_to:
            self._refuse_other_digest(name, side, side.watermark)

    def _refuse_other_digest(self, name: str, side: DriverSession, epoch_id: int) -> None:
        digest = side.digest_of(epoch_id)
        if digest == self.digest:
            return
        raise SideTableError(
            f"side table {name!r} of {self._main.port.uri}, at {side.port.uri}, has epoch "
            f"{epoch_id} of query {side.query_id!r}, written under other options (digest "
            f"{digest[:12] or 'unknown'}, now {self.digest[:12]}), and the query's own table does "
            "not have that epoch yet: its rows would be divided in two ways. Start once with the "
            "options that were set before, until that epoch is done; then change them"
        )
