"""From a stream operator's arguments to the job's specification, and the code shipped with it."""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.source.options import LANCE
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.spec.sink_options import SinkOptions
from airflow_provider_lance.spec.source_options import doubtful_options
from airflow_provider_lance.supervision.driver_reports import new_launch_id

__all__ = [
    "default_query_id",
    "doubts",
    "fingerprint",
    "is_lance",
    "job_spec",
    "mapping",
    "modules_of",
    "resolved_source",
    "seconds",
    "spelled",
]


def job_spec(
    *,
    uri: Any,
    query_id: Any,
    checkpoint_location: Any,
    output_mode: Any,
    create_if_missing: Any,
    sink_options: Mapping[str, Any] | None,
    storage_options: Mapping[str, str],
    **further: Any,
) -> JobSpec:
    """Return the specification of a new launch.

    :param uri: the dataset's absolute URI.
    :param further: the rest of :class:`.JobSpec`, by the names of its JSON.
    :raises SpecError: something is missing, unknown, contradicts, or would show a secret.
    """
    named = {
        "uri": uri,
        "queryId": query_id,
        "checkpointLocation": checkpoint_location,
        "outputMode": output_mode,
    }
    if create_if_missing is not False:  # otherwise sink_options may set it
        named["createIfMissing"] = create_if_missing
    options = spelled(sink_options)
    for name in sorted(named.keys() & options.keys()):
        if options[name] not in (None, named[name]):
            raise SpecError(
                f"sink_options: {name}={options[name]!r} contradicts the operator's argument "
                f"{named[name]!r}; set it once, in the argument"
            )
    sink = {**options, **named, "storageOptions": dict(storage_options)}
    return JobSpec.parse({**further, "launchId": new_launch_id(), "sink": sink})


def is_lance(source: Any) -> bool:
    """Return whether an operator's source is a Lance dataset."""
    return isinstance(source, Mapping) and str(source.get("format")).lower() == LANCE


def resolved_source(source: Any, hook: LanceHook) -> Any:
    """Return an operator's source; the path of a Lance dataset is joined to the base URI.

    :raises SpecError: as :meth:`.LanceHook.resolve`.
    """
    options = source.get("options") if is_lance(source) else None
    if not isinstance(options, Mapping):
        return source
    paths = {
        name: hook.resolve(path)
        for name, path in options.items()
        if str(name).lower() == "path" and isinstance(path, str)
    }
    return {**source, "options": {**options, **paths}}


def doubts(spec: JobSpec) -> Iterator[str]:
    """Yield a warning for each option of the source that Spark may ignore."""
    if spec.source:
        yield from doubtful_options(spec.source.format, spec.source.options)


def spelled(sink_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the sink's options by their names in Spark, from either spelling.

    ``merge_keys`` is ``mergeKeys``; an unknown name stays unchanged.

    :raises SpecError: not a mapping, one option in both spellings, or the store's secrets.
    """
    names = (item.metadata["name"] for item in fields(SinkOptions))
    known = {_snake(name): name for name in names}
    options: dict[str, Any] = {}
    for given, value in mapping(sink_options, "sink_options").items():
        name = known.get(given, given)
        if name in options:
            raise SpecError(
                f"sink_options: {name} and {_snake(name)} are one option, and both are given; "
                f"keep {name}"
            )
        options[name] = value
    if "storageOptions" in options:
        raise SpecError(
            "sink_options: storageOptions would be shown in the rendered template; put them "
            "into the extra of a Lance connection and name it in lance_conn_id"
        )
    return options


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def default_query_id(uri: str) -> str:
    """Return the default query id of a stream: the dataset's name without ``.lance``.

    It depends on the dataset alone, so renaming a DAG or a task does not begin a new query.

    :raises SpecError: the dataset's name cannot be a query id.
    """
    name = uri.strip().rstrip("/").rpartition("/")[2].removesuffix(".lance")
    try:
        return require_query_id(name)
    except SpecError:
        raise SpecError(
            f"query_id is not given, and the dataset's name in {uri!r} cannot stand for it: give "
            "query_id, up to 128 letters, digits, '.', '_' and '-', the first a letter or digit"
        ) from None


def modules_of(dataframe: str | None, py_files: str | None) -> dict[str, bytes]:
    """Return the files of the module that ``module:function`` names, by their names in a zip.

    Only for a module that this process finds and that is not installed, such as those of the DAGs
    folder; nothing is imported. Modules in ``py_files`` are not included again.
    """
    top = (dataframe or "").partition(":")[0].partition(".")[0]
    given = [Path(each.strip()) for each in (py_files or "").split(",") if each.strip()]
    if not top or any(each.suffix != ".py" or each.stem == top for each in given):
        return {}
    found = PathFinder.find_spec(top)
    if found is None:
        return {}
    folders = [Path(each) for each in found.submodule_search_locations or ()]
    files = [(file, folder.parent) for folder in folders for file in sorted(folder.rglob("*.py"))]
    if not folders and found.origin and found.origin.endswith(".py"):
        files = [(Path(found.origin), Path(found.origin).parent)]
    if any(_is_installed(file) for file, _ in files):
        return {}
    return {file.relative_to(root).as_posix(): file.read_bytes() for file, root in files}


def _is_installed(file: Path) -> bool:
    places = {Path(each).resolve() for each in sysconfig.get_paths().values()}
    return any(parent in places for parent in file.resolve().parents)


def fingerprint(spec: JobSpec, submission: Mapping[str, Any]) -> str:
    """Return a text that is equal for launches that would run the same.

    The store's keys do not count: they may change under a running stream.

    :param submission: the arguments of spark-submit besides the specification.
    """
    document = json.loads(spec.dumps())
    for name in ("launchId", "launchedBy"):
        document.pop(name, None)
    document.pop("sourceStorageOptions", None)
    document["sink"].pop("storageOptions", None)
    text = json.dumps([document, dict(submission)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def mapping(value: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """Return a copy of an optional mapping.

    :raises SpecError: it is not a mapping.
    """
    if value is not None and not isinstance(value, Mapping):
        raise SpecError(f"{name} must be a mapping, got {type(value).__name__}")
    return dict(value or {})


def seconds(value: object, name: str) -> float:
    """Return a duration in seconds.

    :raises SpecError: it is not a duration, or not above 0.
    """
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise SpecError(f"{name} must be a timedelta above 0, got {value!r}")
    return value.total_seconds()
