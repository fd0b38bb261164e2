"""Which datasets a command looks at: one, several, all below a connection's base, or all known."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import redirect_stdout
from dataclasses import dataclass

from airflow_provider_lance.cli.target import Place, find_place, hook_class
from airflow_provider_lance.exceptions import LanceStreamError, SpecError, StorageUnavailableError

__all__ = ["Chosen", "Unreached", "chosen_places"]

_SUFFIX = ".lance"


@dataclass(frozen=True, slots=True)
class Unreached:
    """A dataset or a stream that could not be observed."""

    uri: str
    error: Exception
    query_id: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The datasets that were chosen. ``query_id`` is the one query, if it was named.

    ``one`` says that exactly one dataset was typed. ``unreached`` are those whose place is unknown.
    """

    places: list[Place]
    query_id: str | None = None
    one: bool = False
    unreached: tuple[Unreached, ...] = ()


def chosen_places(arguments: Namespace) -> Chosen:
    """Return the datasets that were typed; opens connections, and no dataset.

    The first word is a dataset. A further word is one if it has a slash or a colon, which no query
    id has, and otherwise the query.

    :raises SpecError: the words contradict each other, or as :func:`.target.find_place`.
    """
    words = list(arguments.uris)
    if arguments.all:
        if words or arguments.conn_id or arguments.query_id:
            raise SpecError(
                "--all takes every stream that Airflow knows: leave URIs, --conn-id and --query out"
            )
        return _known(arguments)
    if not words:
        return _below(arguments)
    places = [words[0], *(word for word in words[1:] if _is_place(word))]
    named = [word for word in words[1:] if not _is_place(word)]
    if arguments.query_id:
        named.append(arguments.query_id)
    if len(named) > 1 or (named and len(places) > 1):
        raise SpecError(
            f"{' and '.join(map(repr, named))} name{'s' * (len(named) == 1)} a query beside "
            f"{len(places)} dataset{'s' * (len(places) > 1)}: name one query of one dataset. A "
            f"dataset after the first is written with a slash, such as ./{named[0]}"
        )
    if arguments.checkpoint is not None and len(places) > 1:
        raise SpecError("--checkpoint is one query's: name one dataset")
    found = [find_place(_with(arguments, uri)) for uri in dict.fromkeys(places)]
    return Chosen(found, named[0] if named else None, one=len(found) == 1)


def _is_place(word: str) -> bool:
    return "/" in word or ":" in word


def _with(arguments: Namespace, uri: str) -> Namespace:
    return Namespace(**vars(arguments) | {"uri": uri})


def _below(arguments: Namespace) -> Chosen:
    """Return the datasets below the connection's base URI, one level deep."""
    if arguments.conn_id is None or arguments.query_id:
        raise SpecError(
            "no dataset is named: give lance-stream a URI or several, --conn-id for all datasets "
            "below the connection's base URI, or --all for all that Airflow knows"
        )
    hook = hook_class()(arguments.conn_id)
    with redirect_stdout(sys.stderr):
        base = hook.store.base_uri
    if base is None:
        raise SpecError(f"connection {arguments.conn_id!r} has no base_uri: name a dataset")
    root = find_place(_with(arguments, base))
    names = root.ask(lambda: hook.files(base).names(""))
    found = [name for name in names if name.endswith(_SUFFIX)]
    if not found:
        raise SpecError(f"{base} has no dataset whose name ends in {_SUFFIX}: name a dataset")
    return Chosen([find_place(_with(arguments, f"{base}/{name}")) for name in found])


def _known(arguments: Namespace) -> Chosen:
    """Return the datasets that the Airflow page shows to somebody who may see all of them."""
    hooks = hook_class("--all")
    with redirect_stdout(sys.stderr):
        from sqlalchemy.exc import SQLAlchemyError

        from airflow_provider_lance.plugins.page.registry import hook_of, known_datasets, merge

        try:
            known = known_datasets(hooks)
        except SQLAlchemyError as error:
            reason = str(error).partition("\n")[0]
            raise StorageUnavailableError(
                f"Airflow's database cannot be read, which names the streams: {reason}"
            ) from error
        places, unreached = [], []
        for each in merge(known, dags={each.dag_id for each in known}):
            try:
                hook = hook_of(each, hooks)
                place = Place(
                    hook.resolve(each.uri),
                    None,
                    hook.storage_options,
                    hook.connection_arguments,
                    arguments.timeout,
                )
                places.append(place)
            except LanceStreamError as error:
                unreached.append(Unreached(each.uri, error))
    if not places and not unreached:
        raise SpecError(
            "Airflow knows no stream: no asset of scheme lance, no task that streams, and nothing "
            "in the setting [lance] datasets"
        )
    return Chosen(places, unreached=tuple(unreached))
