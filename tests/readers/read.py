"""Read a dataset with one tool: `python read.py TOOL URI`; prints a checksum for each column.

It runs in an environment that has the tool and pylance, and nothing of this project. A column that
the tool cannot read has the error in place of its checksum.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

KEY = "id"
VECTOR = "vector"


def with_pylance(uri: str, columns: list[str]) -> pa.Table:
    return lance.dataset(uri).to_table(columns=columns)


def with_lancedb(uri: str, columns: list[str]) -> pa.Table:
    return _lancedb_table(uri).search().select(columns).limit(10**6).to_arrow()


def with_duckdb(uri: str, columns: list[str]) -> pa.Table:
    import duckdb

    rows = lance.dataset(uri)  # DuckDB finds it by its name
    assert rows.version
    names = ", ".join(f'"{each}"' for each in columns)
    return duckdb.sql(f"SELECT {names} FROM rows").to_arrow_table()


def with_polars(uri: str, columns: list[str]) -> pa.Table:
    import polars as pl

    return pl.scan_pyarrow_dataset(lance.dataset(uri)).select(columns).collect().to_arrow()


def with_pandas(uri: str, columns: list[str]) -> pa.Table:
    import pandas as pd

    frame = lance.dataset(uri).to_table(columns=columns).to_pandas(types_mapper=pd.ArrowDtype)
    return pa.Table.from_pandas(frame, preserve_index=False)


def with_daft(uri: str, columns: list[str]) -> pa.Table:
    import daft

    return daft.read_lance(uri).select(*columns).to_arrow()


def with_ray(uri: str, columns: list[str]) -> pa.Table:
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    parts = ray.get(ray.data.read_lance(uri, columns=columns).to_arrow_refs())
    return pa.concat_tables(parts)


TOOLS: dict[str, Callable[[str, list[str]], pa.Table]] = {
    "pylance": with_pylance,
    "pandas": with_pandas,
    "lancedb": with_lancedb,
    "duckdb": with_duckdb,
    "polars": with_polars,
    "daft": with_daft,
    "ray": with_ray,
}


def _lancedb_table(uri: str) -> Any:
    import lancedb

    place = Path(uri)
    return lancedb.connect(str(place.parent)).open_table(place.stem)


def checksums(uri: str, read: Callable[[str, list[str]], pa.Table]) -> dict[str, str]:
    """Return each column's checksum, over its values in the order of the key.

    All columns are read at once; one by one only if that fails.
    """
    names, found = lance.dataset(uri).schema.names, {}
    try:
        table = read(uri, names)
        return {name: checksum(table, name) for name in names}
    except Exception as error:
        print(f"one by one: {error}", file=sys.stderr)
    for name in names:
        try:
            found[name] = checksum(read(uri, list(dict.fromkeys([KEY, name]))), name)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return found


def checksum(table: pa.Table, name: str) -> str:
    """Return the checksum of one column's values; how they are stored does not count."""
    keys, values = table[KEY].to_pylist(), table[name].to_pylist()
    pairs = sorted(zip(keys, values, strict=True), key=lambda pair: pair[0])
    digest = hashlib.sha256(repr([(key, plain(value)) for key, value in pairs]).encode())
    return digest.hexdigest()[:12]


def plain(value: Any) -> Any:
    """Return a value in one form, whichever type the tool gives it."""
    match value:
        case bool() | None | str() | int():
            return value
        case float():
            return value.hex()  # NaN is nan, and -0.0 is not 0.0
        case bytes():
            return value.hex()
        case Decimal():
            return str(value.normalize())
        case dt.datetime():
            moment = value.astimezone(dt.UTC) if value.tzinfo else value
            return moment.isoformat(timespec="microseconds")
        case dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return value // dt.timedelta(microseconds=1)
        case pa.MonthDayNano():
            return value.days * 86_400_000_000 + value.nanoseconds // 1000
        case Mapping() if set(value) == {"key", "value"}:
            return (plain(value["key"]), plain(value["value"]))  # an entry of a map
        case Mapping():
            return sorted((name, plain(each)) for name, each in value.items())
        case tuple():
            return tuple(map(plain, value))
        case _:
            return list(map(plain, value))


def nearest(uri: str, wanted: list[float]) -> list[int]:
    """Return the keys of the five rows that LanceDB finds nearest to a vector."""
    table = _lancedb_table(uri).search(wanted, vector_column_name=VECTOR).limit(5).to_arrow()
    return table[KEY].to_pylist()


def main(tool: str, uri: str) -> int:
    document: dict[str, Any] = {
        "version": version(tool),
        "pylance": version("pylance"),
        "columns": checksums(uri, TOOLS[tool]),
    }
    if tool == "lancedb":
        document["nearest"] = nearest(uri, [0.0] * 8)
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
