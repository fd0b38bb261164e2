"""What every list shows of the dataset around a stream: the findings that cost next to nothing."""

from __future__ import annotations

from typing import Unpack

from airflow_provider_lance.diagnostics.collect import CollectOptions
from airflow_provider_lance.diagnostics.evidence import USUAL, DatasetEvidence
from airflow_provider_lance.diagnostics.findings import Finding
from airflow_provider_lance.diagnostics.rules_dataset import dataset_rules
from airflow_provider_lance.maintenance.dataset_metrics import measure_fragments
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.protocol.codec import auto_cleanup
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.port import DatasetPort

__all__ = ["dataset_findings"]


def dataset_findings(port: DatasetPort, **options: Unpack[CollectOptions]) -> list[Finding]:
    """Return the findings from config and manifest, without I/O; a check finds more.

    Consumers are left out: who may see a stream need not be allowed to see who reads it.
    """
    if not isinstance(port, LanceDatasetPort):
        return []
    tolerance = options.get("tolerance", USUAL)
    arguments = options.get("connection_arguments", "")
    seen = DatasetEvidence(
        numbers=measure_fragments(port, MaintenanceOptions().target_rows(port.config)),
        uncovered={},
        auto_cleanup=auto_cleanup(port.config),
    )
    return dataset_rules(port.uri, seen, tolerance, arguments)
