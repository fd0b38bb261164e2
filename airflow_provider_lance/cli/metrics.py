"""``lance-stream metrics``: checks of many datasets as metrics for Prometheus."""

from __future__ import annotations

import logging
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.cli.output import Exit, Output
from airflow_provider_lance.cli.target import Place, find_place
from airflow_provider_lance.cli.waiting import answer_within
from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.metrics import METRICS, Metric, Sample, samples
from airflow_provider_lance.exceptions import LanceStreamError, SpecError
from airflow_provider_lance.protocol.dataset import LOOK_CACHE_BYTES, open_dataset
from airflow_provider_lance.protocol.decoding import without_credentials
from airflow_provider_lance.protocol.lance_errors import named_panics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

__all__ = ["EXPORTER_METRICS", "SHIPPED", "Watched", "run"]

SHIPPED = {"rules": "prometheus-rules.yml", "dashboard": "grafana-dashboard.json"}
"""What ``--print`` prints: files of the package's folder ``alerts``."""

EXPORTER_METRICS = (
    Metric("lance_stream_scrape_success", "1 if the newest check had an answer in time", ("uri",)),
    Metric(
        "lance_stream_scrape_age_seconds",
        "since the newest check that had an answer; without one, since the exporter started",
        ("uri",),
    ),
    Metric("lance_stream_scrape_seconds", "how long the newest check took", ("uri",)),
    Metric("lance_stream_scrape_errors_total", "checks without an answer", ("uri",), counter=True),
)

_ALL = (*METRICS, *EXPORTER_METRICS)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    seconds: float
    samples: tuple[Sample, ...]


class Watched:
    """One dataset: checked again and again in a thread of its own, so none waits for another.

    A call of Lance cannot be interrupted. While one hangs, the samples of the check before it stay
    for ``stale`` seconds, and are then left out.
    """

    def __init__(self, place: Place, *, all_queries: bool, timeout: float, stale: float) -> None:
        self._place, self._all_queries = place, all_queries
        self._timeout, self._stale = timeout, stale
        self._started, self._begun = time.monotonic(), 0.0
        self._seen: _Seen | None = None
        self._errors, self._failed = 0, False

    @property
    def uri(self) -> str:
        """Return the dataset's URI, as labels and messages show it."""
        return without_credentials(self._place.uri)

    def look(self) -> None:
        """Check the dataset once.

        :raises LanceStreamError: it cannot be read; the samples of before stay until they are old.
        """
        self._begun = began = time.monotonic()
        try:
            with named_panics(self.uri):
                made = tuple(self._check())
        except BaseException:
            self._errors, self._failed = self._errors + 1, True
            raise
        else:
            now = time.monotonic()
            self._seen, self._failed = _Seen(now, now - began, made), False
        finally:
            self._begun = 0.0

    def follow(self, interval: float) -> None:
        """Check the dataset forever, with this time from one start to the next."""
        while True:
            began = time.monotonic()
            try:
                self.look()
            except LanceStreamError as error:
                _log.warning("%s", without_credentials(str(error)))
            except Exception:
                _log.exception("The check of %s failed", self.uri)
            time.sleep(max(1.0, interval - (time.monotonic() - began)))

    def samples(self) -> Iterator[Sample]:
        """Yield the newest samples, without those that are stale, and those of the exporter."""
        now, begun, seen, label = time.monotonic(), self._begun, self._seen, (self.uri,)
        hangs = bool(begun) and now - begun > self._timeout
        if seen is not None and now - seen.at <= self._stale:
            yield from seen.samples
        answered = seen is not None and not hangs and not self._failed
        yield Sample("lance_stream_scrape_success", label, answered)
        age = now - (seen.at if seen else self._started)
        yield Sample("lance_stream_scrape_age_seconds", label, age)
        if seen is not None:
            yield Sample("lance_stream_scrape_seconds", label, seen.seconds)
        yield Sample("lance_stream_scrape_errors_total", label, self._errors)

    def _check(self) -> Iterator[Sample]:
        place = self._place
        port = open_dataset(place.uri, place.storage_options, cache_bytes=LOOK_CACHE_BYTES)
        report = check(port, orphans=False, history=5, storage_options=place.storage_options)
        return samples(report, all_queries=self._all_queries)


def run(arguments: Namespace, output: Output) -> int:
    """Print the metrics once, or serve them until Ctrl-C; or print a file that uses them."""
    if arguments.print:
        shipped = files("airflow_provider_lance").joinpath("alerts", SHIPPED[arguments.print])
        print(shipped.read_text(), end="")
        return Exit.HEALTHY
    if not arguments.uris:
        raise SpecError("name at least one dataset: lance-stream metrics URI")
    watched = [
        Watched(
            find_place(Namespace(**vars(arguments) | {"uri": uri})),
            all_queries=arguments.all_queries,
            timeout=arguments.timeout,
            stale=max(arguments.timeout, 3 * arguments.interval),
        )
        for uri in dict.fromkeys(arguments.uris)
    ]
    if arguments.once:
        return _print(watched, arguments.timeout, output)
    return _serve(watched, arguments)


def _print(watched: Sequence[Watched], timeout: float, output: Output) -> Exit:
    registry = None if output.json else _registry(watched)

    def look(each: Watched) -> bool:
        try:
            answer_within(timeout, each.uri, each.look)
        except LanceStreamError as error:
            Output.note(f"error: {without_credentials(str(error))}")
            return False
        return True

    with ThreadPoolExecutor(len(watched)) as threads:
        answered = list(threads.map(look, watched))
    if registry is None:
        output.document({"samples": [_json(each) for one in watched for each in one.samples()]})
    else:
        from prometheus_client import generate_latest

        print(generate_latest(registry).decode(), end="", flush=True)
    return Exit.HEALTHY if all(answered) else Exit.UNKNOWN


def _json(sample: Sample) -> dict[str, Any]:
    labels = next(each.labels for each in _ALL if each.name == sample.name)
    return {
        "name": sample.name,
        "labels": dict(zip(labels, sample.labels, strict=True)),
        "value": sample.value,
    }


def _serve(watched: Sequence[Watched], arguments: Namespace) -> Exit:
    registry = _registry(watched)
    from prometheus_client import start_wsgi_server

    host, _, port = arguments.listen.rpartition(":")
    try:
        server, thread = start_wsgi_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except (OSError, ValueError, OverflowError) as error:
        raise SpecError(f"--listen {arguments.listen}: {error}; write HOST:PORT") from None
    Output.note(f"serving on http://{host or '127.0.0.1'}:{server.server_port}/metrics")
    for each in watched:
        threading.Thread(
            target=each.follow, args=(arguments.interval,), name=each.uri, daemon=True
        ).start()
    thread.join()
    return Exit.HEALTHY


def _registry(watched: Sequence[Watched]) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError:
        raise SpecError(
            "the metrics need prometheus-client: pip install 'airflow-provider-lance[metrics]'"
        ) from None

    class Checks(Collector):
        def collect(self) -> Iterator[Family]:
            found = [sample for each in watched for sample in each.samples()]
            for metric in _ALL:
                kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
                family = kind(metric.name, metric.help, labels=metric.labels)
                for sample in found:
                    if sample.name == metric.name:
                        family.add_metric(sample.labels, sample.value)
                yield family

    registry = CollectorRegistry()
    registry.register(Checks())
    return registry
