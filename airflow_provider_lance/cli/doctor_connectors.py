"""The doctor's check of Spark's Kafka connector: whether its version is that of Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_lance.cli.doctor_machine import (
    Diagnosis,
    Level,
    numbers,
    spark_folder,
)

__all__ = ["diagnose_connectors"]

_NAME = "Kafka connector"
_CONNECTOR = "spark-sql-kafka-0-10"
_KINDS = rf"(?P<kind>{_CONNECTOR}|spark-token-provider-kafka-0-10)_(?P<scala>\d+\.\d+)"
_JAR = re.compile(rf"{_KINDS}-(?P<version>\d[^/]*)\.jar")
_PACKAGE = re.compile(rf"org\.apache\.spark:{_KINDS}:(?P<version>\d.*)")
_CORE = re.compile(r"spark-core_(?P<scala>\d+\.\d+)-(?P<version>\d[^/]*)\.jar")
_PUBLISHED = (4, 2, 0)
"""The newest connector that was published when this release was made."""
_SETTING = re.compile(r"^\s*(spark\.\S+?)[\s=:]+(.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class _Found:
    kind: str
    scala: str
    version: str
    where: str


def diagnose_connectors(
    packages: str = "", environment: Mapping[str, str] = os.environ
) -> Iterator[Diagnosis]:
    """Check the connector on Spark's class path, in its defaults and in ``packages``.

    :param packages: what a stream's operator gets as ``packages``.
    """
    home = spark_folder(environment)
    names = sorted(path.name for path in (home / "jars").glob("*.jar")) if home else []
    core = next(filter(None, map(_CORE.fullmatch, names)), None)
    if home is None or core is None:
        return  # the check of Spark says so
    found = [*_in(home, names, environment), *_named(packages.split(","), "packages")]
    wanted = f"org.apache.spark:{_CONNECTOR}_{core['scala']}:{core['version']}"
    if numbers(core["version"]) > _PUBLISHED:
        newest = ".".join(map(str, _PUBLISHED))
        advice = f"look whether {wanted} is published by now, or use Spark {newest}"
    else:
        advice = f'name it in the stream\'s operator: packages="{wanted}"'
    if not any(each.kind == _CONNECTOR for each in found):
        seen = "none on Spark's class path; only streams that read Kafka need one"
        yield Diagnosis(_NAME, Level.NOTE, seen, advice)
        return
    for each in found:
        seen = f"{each.kind}_{each.scala} {each.version} ({each.where})"
        spark = f"Spark is {core['version']}, built with Scala {core['scala']}"
        if each.scala != core["scala"]:
            yield Diagnosis(_NAME, Level.ERROR, f"{seen}: {spark}", advice)
        elif each.version != core["version"]:
            yield Diagnosis(_NAME, Level.WARNING, f"{seen}: {spark}", advice)
        else:
            yield Diagnosis(_NAME, Level.OK, seen)
    kinds = [each.kind for each in found if each.where != "packages"]
    if len(kinds) != len(set(kinds)):
        seen = "it is on the class path more than once"
        yield Diagnosis(_NAME, Level.ERROR, seen, "remove all but the one of Spark's version")


def _in(home: Path, names: list[str], environment: Mapping[str, str]) -> Iterator[_Found]:
    """Find connectors in Spark's folder, and in what its defaults name."""
    yield from _named(names, str(home / "jars"))
    defaults = Path(environment.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    try:
        settings = dict(_SETTING.findall(defaults.read_text()))
    except OSError:
        return
    for setting, separator in (
        ("spark.jars", ","),
        ("spark.jars.packages", ","),
        ("spark.driver.extraClassPath", os.pathsep),
    ):
        words: list[str] = []
        for word in filter(None, settings.get(setting, "").split(separator)):
            folder = Path(word.removesuffix("*"))
            many = word.endswith("/*") and folder.is_dir()
            words += sorted(map(str, folder.glob("*.jar"))) if many else [word]
        yield from _named(words, f"{setting} in {defaults}")


def _named(words: list[str], where: str) -> Iterator[_Found]:
    for word in words:
        name = word.strip().rpartition("/")[2]
        if match := _JAR.fullmatch(name) or _PACKAGE.fullmatch(word.strip()):
            yield _Found(match["kind"], match["scala"], match["version"], where)
