"""The desk: a stream in trouble, what the check says of it, and that typed as it is printed.

A kind of trouble is one test with `@kind(…)`. It breaks the stream of the fixture ``desk``, then::

    found = desk.found()              # the real check has the kind's code, and its sentence
    desk.follow(found, "choice")      # each step as printed: commands in a shell, starts by Spark
    desk.expect()                     # the stream goes on, rows once or the kind's number lost

"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import lance
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.supervision.driver_reports import Summary
from tests.support.recovery import ROWS, Scene

__all__ = ["KINDS", "ROWS", "TASK", "Desk", "Kind", "kind"]

TASK = "lake/orders/scheduled__2026-03-01T00:00:00+00:00/-1#1"
"""The task that launches the desk's drivers."""

_STARTS = re.compile(r"\b(clear (the )?task|start (the stream|the query|it)\b)", re.IGNORECASE)
_CLEARS = "airflow lance clear-task lake "
"""How the command begins that clears the desk's task; another test types it into an Airflow."""
_ANSWER = re.compile(r"(If|Or|Either)\b")
"""How the text of a step begins that is one of several answers of a person."""
_OPTIONS = re.compile(r"sink_options=(\{[^}]*\})")
_PLACEHOLDER = re.compile(r"<[a-z][\w -]*>|…|\.\.\.")
_LOOKS_ONLY = re.compile(r"^lance-stream (check|status|epochs|watch)\b|--dry-run\b")


@dataclass(frozen=True)
class Kind:
    """One kind of trouble: a row of the table.

    ``ends`` says in short what ends it; ``lost`` is the number of rows declared lost. ``code`` is a
    finding's, or the name of the error with which no check is possible.
    """

    name: str
    code: Code | str
    ends: str
    lost: int = 0

    @property
    def row(self) -> str:
        """Return its row in Markdown."""
        code, docs = str(self.code), Path(__file__).parents[2] / "docs"
        if isinstance(self.code, Code):
            [path] = docs.glob(f"runbook/{code}-*.md")
            page = f"../runbook/{path.name}"
        else:
            titles = re.findall(
                r"^## (.*)$", (docs / "how-to/trouble.md").read_text(), re.MULTILINE
            )
            title = next(each for each in titles if code in each)
            page = f"trouble.md#{title.lower().replace(',', '').replace(' ', '-')}"
        rows = f"{self.lost} declared lost, the others once" if self.lost else "each once"
        return f"| {self.name} | [{code}]({page}) | {self.ends} | {rows} |"


KINDS: dict[str, Kind] = {}
"""Every kind by its name, in the order of the files."""

Test = TypeVar("Test", bound=Callable[..., None])


def kind(name: str, code: Code | str, *, ends: str, lost: int = 0) -> Callable[[Test], Test]:
    """Register a test as a kind of trouble."""
    assert name not in KINDS, name
    KINDS[name] = Kind(name, code, ends, lost)

    def register(test: Test) -> Test:
        @functools.wraps(test)
        def to_the_end(*args: object, **fixtures: object) -> None:
            test(*args, **fixtures)
            desks = [each for each in fixtures.values() if isinstance(each, Desk)]
            assert desks, "a kind of trouble takes a desk"
            assert all(each.expected for each in desks), "it ends with desk.expect()"

        to_the_end.kind = KINDS[name]  # type: ignore[attr-defined]
        return pytest.mark.slow(to_the_end)  # type: ignore[return-value, no-any-return]

    return register


class Desk:
    """A stream with real Spark, and a person who knows of it only what the check prints.

    :ivar arguments: what every command of the desk carries to reach the store.
    :ivar storage_options: what reaches the dataset, if it is not on a disk.
    :ivar sink: options of the sink in every start, such as ``uri``.
    """

    def __init__(self, scene: Scene, kind: Kind) -> None:
        self.scene, self.kind = scene, kind
        self.uri, self.checkpoint = scene.uri, scene.checkpoint
        self.arguments: tuple[str, ...] = ()
        self.sink: dict[str, Any] = {}
        self.storage_options: dict[str, str] | None = None
        self.expected = False

    @property
    def spark(self) -> SparkSession:
        return self.scene.stream.spark

    # ------------------------------------------------------------------------------- the stream

    def start(self, launched_by: str = TASK, **sink: Any) -> Summary:
        """Start the stream over all that is there, as clearing its task does; in this process."""
        return self.scene.launch(launched_by, **{**self.sink, **sink})

    def start_well(self, **sink: Any) -> None:
        """Start the stream, and assert that it ends in order."""
        summary = self.start(**sink)
        assert summary.error is None, f"{summary.error}: {summary.message}"

    def rows(self) -> Counter[int]:
        """Return how often the table has each id, as a reader sees it."""
        dataset = lance.dataset(self.uri, storage_options=self.storage_options)
        return Counter(dataset.to_table().column("id").to_pylist())

    # --------------------------------------------------------------------------------- the desk

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """Type a command exactly as it is printed, in a shell of its own."""
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-c", command],
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def check(self, *words: str) -> dict[str, Any]:
        """Return what `lance-stream check` prints as JSON."""
        line = " ".join(["lance-stream", "check", self.uri, *words, *self.arguments, "-o", "json"])
        ran = self.type(line)
        # 3: nothing shows whether there is a driver.
        assert ran.returncode in (0, 1, 3), f"{line}\n{ran.returncode}: {ran.stderr}\n{ran.stdout}"
        report: dict[str, Any] = json.loads(ran.stdout)
        assert (ran.returncode == 1) == (report["worst"] in ("error", "critical")), report["worst"]
        return report

    def refused(self) -> dict[str, Any]:
        """Check, and return the error of the kind, with which the check ends."""
        ran = self.type(
            " ".join(["lance-stream", "check", self.uri, *self.arguments, "-o", "json"])
        )
        error: dict[str, Any] = json.loads(ran.stdout)["error"]
        assert (error["class"], error["exit"]) == (self.kind.code, ran.returncode)
        assert error["message"] in ran.stderr
        return error

    def found(self, *words: str) -> dict[str, Any]:
        """Check, and return the finding of the kind's code, which must be the worst one."""
        findings = self.check(*words)["findings"]
        found: dict[str, Any] | None = next(
            (each for each in findings if each["code"] == str(self.kind.code)), None
        )
        assert found is not None, [(each["code"], each["summary"]) for each in findings]
        assert found["severity"] == findings[0]["severity"], findings[0]
        if self.kind.lost:
            said = json.dumps([found["summary"], found["cause"], found["steps"]])
            assert re.search(rf"\b{self.kind.lost:,} rows\b", said), "the number of lost rows"
        return found

    def follow(
        self,
        finding: Mapping[str, Any],
        *answers: str,
        by_hand: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        """Do each step of a finding as it is printed.

        A step whose text begins with "If", "Either" or "Or" is one person's answer; it is done only
        if its text has one of ``answers``. A command is typed in a shell and must succeed. A text
        that says to clear the task or to start the stream does that, with the `sink_options=` that
        it names. Anything else needs a function in ``by_hand``, found by a part of the text.

        :raises AssertionError: a step cannot be done as it stands.
        """
        steps = finding["steps"]
        assert steps, finding
        done = 0
        for step in steps:
            text, command = step["text"], step["command"]
            if _ANSWER.match(text) and not any(answer in text for answer in answers):
                continue
            done += 1
            hands = [act for part, act in (by_hand or {}).items() if part in text]
            if command and not command.startswith(_CLEARS):
                self._type_step(command)
            elif hands:
                hands[0]()
            else:
                assert _STARTS.search(text), f"nothing to type, and nothing by hand: {text}"
                options = _OPTIONS.search(text)
                self.start_well(**(ast.literal_eval(options[1]) if options else {}))
        assert done, f"none of {answers} is among {[step['text'] for step in steps]}"

    def _type_step(self, command: str) -> None:
        assert not _PLACEHOLDER.search(command), f"not complete: {command}"
        assert not _LOOKS_ONLY.search(command), f"looks, and ends nothing: {command}"
        ran = self.type(command)
        assert ran.returncode == 0, f"{command}\n{ran.returncode}: {ran.stdout}{ran.stderr}"

    def expect(self, *check: str) -> None:
        """Assert that the stream goes on, that no row is there twice, and that all is healthy.

        The rows that are missing must be as many as the kind declares lost.
        """
        before = self.scene.added
        self.scene.add()
        self.start_well()
        there = self.rows()
        source = range(self.scene.added * ROWS)
        assert [each for each, times in there.items() if times > 1] == []
        assert set(there) <= set(source)
        assert set(range(before * ROWS, self.scene.added * ROWS)) <= set(there), "the new rows"
        assert len(source) - len(there) == self.kind.lost, sorted(set(source) - set(there))
        report = self.check(*check)
        bad = [each for each in report["findings"] if each["severity"] != "info"]
        assert bad == [], bad
        assert all(each["healthy"] for each in report["statuses"]), report["statuses"]
        assert report["findings"][0]["code"] == Code.HEALTHY.value
        self.expected = True
