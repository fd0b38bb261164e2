"""Does a store refuse one of two commits of the same version? Tried, not believed.

Everything exact about a stream stands on this: of two owners that claim at once, one must lose.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from uuid import uuid4

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    LanceStreamError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, lance_session, open_dataset
from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.protocol.port import Configure

__all__ = ["Probe", "try_commits"]

_KEY = "lance-stream.probe"
_ROUNDS, _WRITERS = 5, 2


@dataclass(frozen=True, slots=True)
class Probe:
    """What the rounds showed. ``broken`` says what went wrong, empty if nothing did.

    ``left`` is where the small dataset still lies because it could not be removed.
    """

    uri: str
    rounds: int = 0
    broken: str = ""
    left: str = ""


def try_commits(uri: str, storage_options: Mapping[str, str]) -> Probe:
    """Make a dataset of a random name beside ``uri``, commit to it at once, and remove it.

    :raises StorageUnavailableError: the store did not let the dataset be made.
    :raises SpecError: pyarrow does not serve the store, so nothing could be removed again.
    """
    place = f"{uri.rstrip('/')}.probe-{uuid4().hex}"
    files = open_files(place, storage_options)  # what cannot be removed is not made
    port = _make(place, storage_options)
    rounds, broken = 0, ""
    try:
        for rounds in range(1, _ROUNDS + 1):
            port, broken = _round(port, place, storage_options, rounds)
            if broken:
                break
    finally:
        left = _remove(files)
    return Probe(place, rounds, broken, place if left else "")


def _make(place: str, storage_options: Mapping[str, str]) -> LanceDatasetPort:
    import lance
    import pyarrow

    try:
        nothing = pyarrow.table({"probe": pyarrow.array([], pyarrow.int64())})
        lance.write_dataset(
            nothing,
            place,
            storage_options=dict(storage_options) or None,
            session=lance_session(),
        )
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise StorageUnavailableError(f"cannot make {place}: {first}") from error
    return open_dataset(place, storage_options)


def _round(
    port: LanceDatasetPort, place: str, storage_options: Mapping[str, str], number: int
) -> tuple[LanceDatasetPort, str]:
    """Let all writers commit the same key at once, each from a handle of its own."""
    handles = [open_dataset(place, storage_options, version=port.version) for _ in range(_WRITERS)]
    start = Barrier(_WRITERS)

    def write(writer: int) -> bool | LanceStreamError:
        start.wait()
        try:
            handles[writer].commit(Configure({_KEY: f"{number}/{writer}"}))
        except CommitPreemptedError:
            return False
        except LanceStreamError as error:
            return error
        return True

    with ThreadPoolExecutor(_WRITERS) as pool:
        outcomes = list(pool.map(write, range(_WRITERS)))
    if errors := [each for each in outcomes if isinstance(each, LanceStreamError)]:
        return port, f"a commit did not end in landing or refusal: {errors[0]}"
    newest = open_dataset(place, storage_options)
    winners = [f"{number}/{writer}" for writer, landed in enumerate(outcomes) if landed]
    if len(winners) != 1:
        return port, f"{len(winners)} of {_WRITERS} commits of version {port.version} landed"
    if newest.config.get(_KEY) != winners[0] or newest.version != port.version + 1:
        return port, f"the commit that landed on version {port.version} is not what is there now"
    return newest, ""


def _remove(files: ArrowFiles) -> bool:
    """Remove the dataset; tell whether something is left."""
    try:
        files.remove("")
    except StorageUnavailableError:
        return True
    return False
