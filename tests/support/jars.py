"""Jars from Maven, fetched once into `.tools`."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import REPOSITORY

_JARS = REPOSITORY / ".tools" / "jars"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
      <exclusions>{without}</exclusions>
    </dependency>
    {beside}
  </dependencies>
</project>
"""


class JarsUnavailableError(Exception):
    """There is no Maven, or it cannot fetch the artifact."""


def fetched_jars(
    group: str, coordinates: str, *, without: Sequence[str] = (), beside: Sequence[str] = ()
) -> Path:
    """Return a folder with an artifact and its dependencies, as ``--packages`` would fetch them.

    :param coordinates: ``artifact:version``.
    :param without: dependencies left out, as ``group:artifact``.
    :param beside: what to fetch instead, as ``group:artifact:version``.
    :raises JarsUnavailableError: they are not here and cannot be fetched.
    """
    artifact, _, version = coordinates.partition(":")
    _JARS.mkdir(parents=True, exist_ok=True)
    folder = _JARS / f"{artifact}-{version}"
    with (_JARS / "fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        maven = shutil.which("mvn")
        if maven is None:
            raise JarsUnavailableError(
                f"Maven (mvn) is not on PATH: it fetches {group}:{coordinates}"
            )
        with tempfile.TemporaryDirectory(dir=_JARS) as name:
            pom = Path(name, "pom.xml")
            pom.write_text(
                _POM.format(
                    group=group,
                    artifact=artifact,
                    version=version,
                    without="".join(_element("exclusion", each) for each in without),
                    beside="".join(_element("dependency", each) for each in beside),
                )
            )
            copy = [
                *(maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"),
                *("-DincludeScope=runtime", f"-DoutputDirectory={name}/jars"),
            ]
            done = subprocess.run(copy, check=False, capture_output=True, text=True, timeout=500)
            if done.returncode:
                said = next((x for x in done.stdout.splitlines() if "ERROR" in x), done.stderr)
                raise JarsUnavailableError(f"Maven cannot fetch {group}:{coordinates}: {said}")
            Path(name, "jars").rename(folder)
    return folder


def _element(tag: str, coordinates: str) -> str:
    parts = zip(("groupId", "artifactId", "version"), coordinates.split(":"), strict=False)
    return f"<{tag}>{''.join(f'<{part}>{text}</{part}>' for part, text in parts)}</{tag}>"
