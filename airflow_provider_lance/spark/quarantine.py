"""The quarantine of one run: opened or created, and written before the epoch's own commit."""

from __future__ import annotations

import json
import logging
from itertools import islice

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    SchemaMismatchError,
    SideTableError,
)
from airflow_provider_lance.protocol.codec import decode_stamp
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, lance_session, open_dataset
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, create_error, named_panics
from airflow_provider_lance.protocol.model import EndOffsets, Epoch, OutputMode
from airflow_provider_lance.protocol.quarantine import NAME, quarantine_schema
from airflow_provider_lance.protocol.side_tables import SideTables
from airflow_provider_lance.protocol.watermark import versions_of
from airflow_provider_lance.spark.aside import Origin, write_aside
from airflow_provider_lance.spark.collect_fragments import CollectedFragments
from airflow_provider_lance.spec.sink_options import SinkOptions

__all__ = ["commit_aside", "open_quarantine", "origin_of"]

log = logging.getLogger(__name__)

_MOST_VERSIONS = 200
"""Versions of the quarantine that are searched for an epoch that was half done."""


def open_quarantine(options: SinkOptions) -> LanceDatasetPort:
    """Open the quarantine; create it if there is none.

    :raises SchemaMismatchError: another dataset is in its place.
    :raises StorageUnavailableError: the store did not answer, or it could not be created.
    """
    uri, wanted = options.quarantine_place, quarantine_schema()
    try:
        port = _open(options)
    except DatasetNotFoundError:
        port = _create(options)
    found = port.dataset.schema
    if not found.equals(wanted):
        raise SchemaMismatchError(
            f"{uri} has the columns {found.names}, and a quarantine has {wanted.names}: another "
            "dataset is in its place. Give the quarantine a place of its own, with quarantineUri"
        )
    return port


def _open(options: SinkOptions) -> LanceDatasetPort:
    return open_dataset(
        options.quarantine_place, options.storage_options, cache_bytes=options.cache_bytes
    )


def _create(options: SinkOptions) -> LanceDatasetPort:
    import lance

    uri = options.quarantine_place
    try:
        with named_panics(uri):
            lance.write_dataset(
                quarantine_schema().empty_table(),
                uri,
                mode="create",
                storage_options=dict(options.storage_options) or None,
                session=lance_session(options.cache_bytes),
            )
    except LANCE_ERRORS as error:
        # Another driver may have created it first, or the answer was lost.
        try:
            return _open(options)
        except DatasetNotFoundError:
            raise create_error(uri, error) from error
    log.info("Created the quarantine. uri=%s", uri)
    return _open(options)


def origin_of(
    options: SinkOptions, epoch_id: int, ends: EndOffsets | None, started_at: str
) -> Origin | None:
    """Return what an epoch's quarantined rows have in common; ``None`` if none can be."""
    if not options.quarantines:
        return None
    lines = json.dumps(list(ends.lines)) if ends and ends.lines is not None else None
    return Origin(
        uri=options.quarantine_place,
        query_id=options.query_id,
        epoch_id=epoch_id,
        source_ends=lines,
        at=started_at,
        mode="sequenced" if options.sequence_by else options.commit_mode.value,
        merge_keys=options.merge_keys,
        storage_options=dict(options.storage_options),
    )


def commit_aside(
    sides: SideTables,
    written: CollectedFragments,
    options: SinkOptions,
    origin: Origin,
    ends: EndOffsets | None,
) -> None:
    """Commit an epoch's rows into the quarantine, unless it has them already.

    :raises SideTableError: it has the epoch, written under other options or with other rows.
    :raises TerminalError, TransientError: as :meth:`.EpochPlan.commit`.
    """
    count = written.checks.quarantined
    side = sides.sessions.get(NAME)
    replayed = side is not None and side.watermark >= origin.epoch_id
    if not count and not replayed:
        return
    plan = sides.begin(NAME, origin.epoch_id, lambda: open_quarantine(options))
    if plan is None:
        _refuse_other_count(sides, origin, count)
        return
    fragments = list(written.aside_fragments)
    if written.aside is not None:
        port = plan.port
        assert isinstance(port, LanceDatasetPort)
        fragments += write_aside(written.aside, origin, port.dataset)
    plan.commit(
        Epoch(
            epoch_id=origin.epoch_id,
            mode=OutputMode.APPEND,
            fragments=fragments,
            rows=count,
            bytes=0 if written.aside is None else written.aside.nbytes,
            started_at=origin.at,
            ends=ends,
            digest=sides.digest,
        )
    )


def _refuse_other_count(sides: SideTables, origin: Origin, count: int) -> None:
    """Refuse a replay that sends fewer or more rows of an epoch than the quarantine has.

    The dataset's schema was changed between the two commits: other rows fit it now.
    """
    port = sides.sessions[NAME].port
    for version, properties in islice(versions_of(port, 0), _MOST_VERSIONS):
        stamp = decode_stamp(properties or {}, origin.query_id, version)
        if stamp is None or stamp.epoch_id != origin.epoch_id:
            continue
        if stamp.rows != count:
            raise SideTableError(
                f"{port.uri} has {stamp.rows} rows of epoch {origin.epoch_id} (version {version}), "
                f"and now {count} of its rows do not land: the dataset's schema, or the data, was "
                "changed while the epoch was half done. Undo that change, start the stream once, "
                "then change it again. Nothing of the epoch was committed to the table"
            )
        return
