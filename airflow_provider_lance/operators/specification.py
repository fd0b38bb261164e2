"""From a stream operator's rendered arguments to the job's specification; pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.streaming.report import new_launch_id
from airflow_provider_lance.streaming.spec import JobSpec

__all__ = ["fingerprint", "job_spec", "mapping", "seconds"]


def job_spec(
    *,
    uri: str,
    query_id: str,
    checkpoint_location: str,
    output_mode: str,
    sink_options: Mapping[str, Any] | None,
    storage_options: Mapping[str, str],
    further: Mapping[str, Any],
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
    options = mapping(sink_options, "sink_options")
    for name in sorted(named.keys() & options.keys()):
        if options[name] != named[name]:
            raise SpecError(
                f"sink_options: {name}={options[name]!r} contradicts the operator's argument "
                f"{named[name]!r}; say it once, in the argument"
            )
    if "storageOptions" in options:
        raise SpecError(
            "sink_options: storageOptions would be shown in the rendered template; put them "
            "into the extra of a Lance connection and name it in lance_conn_id"
        )
    sink = {**options, **named, "storageOptions": dict(storage_options)}
    return JobSpec.parse({**further, "launchId": new_launch_id(), "sink": sink})


def fingerprint(spec: JobSpec, submission: Mapping[str, Any]) -> str:
    """Return a text that is equal for launches that would run the same.

    The store's keys do not count: they may change under a running stream.

    :param submission: what is handed to spark-submit besides the specification.
    """
    document = json.loads(spec.dumps())
    for name in ("launchId", "launchedBy"):
        document.pop(name, None)
    document["sink"].pop("storageOptions", None)
    text = json.dumps([document, dict(submission)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def mapping(value: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """Return a copy of an optional mapping.

    :raises SpecError: it is something else.
    """
    if value is not None and not isinstance(value, Mapping):
        raise SpecError(f"{name} must be a mapping, got {type(value).__name__}")
    return dict(value or {})


def seconds(value: object, name: str) -> float:
    """Return a duration in seconds.

    :raises SpecError: it is no duration, or not more than nothing.
    """
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise SpecError(f"{name} must be a timedelta of more than nothing, got {value!r}")
    return value.total_seconds()
