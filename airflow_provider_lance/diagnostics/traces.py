"""Which queries have left a trace: in the config, beside a checkpoint, in the history.

A config may have lost its keys: another tool or a person removed them. The versions before still
have them, and the epochs since are stamped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from airflow_provider_lance.exceptions import ProtocolVersionError, SpecError
from airflow_provider_lance.protocol.codec import decode_query, decode_stamp, key, query_ids
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.files import Files, open_files
from airflow_provider_lance.protocol.model import QueryState
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.watermark import exact_watermark, versions_of
from airflow_provider_lance.supervision.driver_reports import read_heartbeat, report_location

__all__ = ["UNDERIVED", "KeptConfig", "find_traces", "is_beyond_proof", "kept_config"]

_READ = 40
"""How many of the newest versions are read for a query of which the config says nothing."""
_WORDS = ("owner", "lastEpoch", "lastEpochVersion", "lastEpochTime", "lastDone")
"""The keys that a restart relies on; a request to stop is not put back."""
UNDERIVED = ("owner", "lastEpoch")
"""What nothing else proves: without an older version that has it, it is not removed."""
_HEARD = 5
"""How many of the newest launches' heartbeats are read."""


@dataclass(frozen=True, slots=True)
class KeptConfig:
    """What the config of version ``version`` has of a query, and version ``removed_in`` removed.

    ``keys`` are those to put back, ``state`` what they say, ``epoch`` the newest epoch that is
    committed.
    """

    version: int
    removed_in: int
    keys: Mapping[str, str]
    state: QueryState
    epoch: int


def find_traces(
    port: DatasetPort,
    checkpoint_location: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    files: Callable[[str], Files] | None = None,
) -> list[str]:
    """Return every query that has left a trace, sorted; costs no I/O if the config has one.

    Otherwise those of which a heartbeat beside the checkpoint tells, which a driver writes before
    its first epoch. Otherwise those that the newest versions name.

    :raises StorageUnavailableError: the store did not answer.
    """
    if known := query_ids(port.config):
        return known
    if checkpoint_location:
        opener = files or (lambda location: open_files(location, storage_options))
        if heard := _heard(port.uri, opener, checkpoint_location):
            return heard
    stamps = islice(versions_of(port, 0), _READ)
    found = {(properties or {}).get("streaming.queryId") for _, properties in stamps}
    return sorted(each for each in found if each)


def _heard(uri: str, opener: Callable[[str], Files], location: str) -> list[str]:
    try:
        reports = opener(report_location(location))
    except (SpecError, ImportError):  # pyarrow does not serve that store
        return []
    launches = sorted(reports.names(""), reverse=True)[:_HEARD]
    said = [read_heartbeat(reports, each) or {} for each in launches]
    return sorted(
        {
            str(each["queryId"])
            for each in said
            # An alias of the place may lead to the same dataset, which still has this name.
            if each.get("queryId") and _name(_uri(each) or uri) == _name(uri)
        }
    )


def _uri(heartbeat: Mapping[str, object]) -> str:
    sink = heartbeat.get("sink")
    return str(sink.get("uri") or "") if isinstance(sink, Mapping) else ""


def _name(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2]


def kept_config(port: DatasetPort, query_id: str) -> KeptConfig | None:
    """Return what the config had of a query before its keys were removed, if that is proven.

    Follows the versions that the newest was made from. A change of the config must have removed
    the keys, and since then nobody else may have replaced all rows.

    :raises StorageUnavailableError: the store did not answer.
    """
    owner = key("owner", query_id)
    if owner in port.config or not isinstance(port, LanceDatasetPort):
        return None
    removed_in, newest = 0, -1
    for version, properties in islice(versions_of(port, 0), _READ):
        then = port.at(version) if properties is not None else None
        transaction = port.transaction(version) if then else None
        if then is None or properties is None or transaction is None:
            return None
        if owner in then.config and (state := _readable(then, query_id)):
            return _kept(port, then, state, removed_in, newest)
        stamp = decode_stamp(properties, query_id, version)
        newest = max(newest, stamp.epoch_id if stamp else newest)
        operation = type(transaction.operation).__name__
        if operation == "Overwrite" and not stamp:
            return None
        if operation != "Restore":  # its rows and its config are those of the version it restored
            removed_in = version if operation == "UpdateConfig" else 0
    return None


def is_beyond_proof(port: DatasetPort, query_id: str) -> bool:
    """Return whether a wrong value of a query is one that nothing shows any more.

    Only the version before could show what the owner record or the watermark was.
    """
    if port.properties(port.version - 1) is not None:
        return False
    for word in UNDERIVED:
        name = key(word, query_id)
        try:
            decode_query(
                {name: port.config[name]} if name in port.config else {}, query_id, port.version
            )
        except ProtocolVersionError:
            return True
    return False


def _readable(port: DatasetPort, query_id: str) -> QueryState | None:
    """Return what the config says of a query, ``None`` if it has values that no driver writes."""
    try:
        return decode_query(port.config, query_id, port.version)
    except ProtocolVersionError:
        return None


def _kept(
    port: DatasetPort, then: LanceDatasetPort, state: QueryState, removed_in: int, newest: int
) -> KeptConfig | None:
    if not removed_in:
        return None
    query_id = state.query_id
    words = {key(word, query_id) for word in _WORDS}
    sides = key("side", f"{query_id}/")
    back = {
        name: value
        for name, value in then.config.items()
        if (name in words or name.startswith(sides)) and name not in port.config
    }
    epoch = max(newest, exact_watermark(then, query_id).epoch)
    return KeptConfig(then.version, removed_in, back, state, epoch)
