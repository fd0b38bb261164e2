"""The side tables of a stream, as they are seen from outside: each one's watermark and trouble."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from airflow_provider_lance.exceptions import DatasetNotFoundError, LanceStreamError
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LOOK_CACHE_BYTES, open_dataset
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.sides import decode_sides
from airflow_provider_lance.protocol.watermark import exact_watermark

__all__ = ["SideTableStatus", "collect_sides"]

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class SideTableStatus(JsonRecord):
    """One side table; ``watermark`` is the newest epoch that has rows in it, -1 without one.

    ``lost`` says why epochs that it had are gone. ``problem`` says why it could not be read.
    """

    name: str
    uri: str
    watermark: int = NO_EPOCH
    version: int = 0
    lost: str = ""
    problem: str = ""


def collect_sides(
    port: DatasetPort,
    query_id: str,
    storage_options: Mapping[str, str] | None,
    *,
    spark_done: int | None = None,
) -> tuple[SideTableStatus, ...]:
    """Read each side table that a query has registered; some milliseconds each, several at once.

    :param spark_done: the newest epoch in Spark's commit log, if it is known.
    :raises ProtocolVersionError: a registration is not the package's own.
    """
    registered = decode_sides(port.config, query_id)
    if not registered:
        return ()

    def look(named: tuple[str, str]) -> SideTableStatus:
        return _look(*named, query_id, storage_options, spark_done)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return tuple(threads.map(look, registered.items()))


def _look(
    name: str,
    uri: str,
    query_id: str,
    storage_options: Mapping[str, str] | None,
    spark_done: int | None,
) -> SideTableStatus:
    try:
        port = open_dataset(uri, storage_options, cache_bytes=LOOK_CACHE_BYTES)
        watermark = exact_watermark(port, query_id, spark_done=spark_done)
        known = decode_query(port.config, query_id, port.version).known
    except DatasetNotFoundError:
        return SideTableStatus(name, uri, lost="there is no dataset")
    except LanceStreamError as error:
        return SideTableStatus(name, uri, problem=str(error))
    lost = "" if known else "it has no trace of the query"
    if watermark.undone:
        first, last = watermark.undone[0].epoch_id, watermark.undone[-1].epoch_id
        lost = f"a restored version lacks epochs {first} to {last}"
    return SideTableStatus(name, uri, watermark.epoch, port.version, lost)
