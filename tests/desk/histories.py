"""Random lives of a stream in trouble: what the desk says is so, and what it says to type is safe.

    python -m tests.desk.histories [--histories 1000] [--seed 1]

Real datasets, checkpoints, sessions and processes, without Spark. A driver commits epochs and ends
in order, is killed at a step, freezes or runs on. Others restore the dataset, recreate it, write
garbage into its config, clean up, compact, put an older checkpoint back, delete it or cut a file
off. After each trouble `lance-stream check` is typed:

- it is not healthy while rows are missing or doubled, or while nobody runs the stream;
- its steps are done as printed, one of several answers by chance, until it is healthy: no row is
  doubled, and not more are missing than the findings that were followed have declared.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import refuse_corrupt
from airflow_provider_lance.protocol.codec import decode_query, key
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, EndOffsets, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.spec.sink_options import SinkOptions
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    Summary,
    new_launch_id,
    report_location,
    write_heartbeat,
    write_summary,
)
from airflow_provider_lance.supervision.liveness import DriverObservation
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.desk.desk import _ANSWER, _OPTIONS, _PLACEHOLDER, _STARTS
from tests.support.cli import typed
from tests.support.drivers import QUICK

QUERY = "orders"
SCHEMA = pa.schema([("id", pa.int64())])
ROUNDS = 6
"""How often the desk is asked in one trouble; an answer may bring up the next finding."""
GARBAGE = ("", "x", "-7", "99999", "3.5", "{}", "[]", '{"token": 1}', "null", "1e9")
KEYS = ("lastEpoch", "lastEpochVersion", "owner", "lastEpochTime")


class Killed(BaseException):
    """The driver's process is gone."""


@dataclass
class Tally:
    """What became of the histories."""

    happened: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)


class History:
    """One stream: a source of numbered rows, a checkpoint, a table, and its drivers' processes."""

    def __init__(self, root: Path, seed: str, tally: Tally) -> None:
        self.root, self.random, self.tally = root, random.Random(seed), tally
        self.uri, self.checkpoint = str(root / "orders.lance"), root / "checkpoint"
        self.source = 0
        self.ends: dict[int, int] = {}
        """Where each epoch ended that was planned."""
        self.processes: list[subprocess.Popen[bytes]] = []
        self.running: subprocess.Popen[bytes] | None = None
        self._finish = lambda: None
        self.in_order = False
        """Whether the newest driver ended in order, and nobody runs it on purpose."""
        self.declared = 0
        """The rows that followed findings have declared lost."""
        self.unreported = False
        """Whether a cleanup took the version of an epoch that no report has."""
        self.said: list[str] = []
        self._new_checkpoint()
        lance.write_dataset(SCHEMA.empty_table(), self.uri)

    # -------------------------------------------------------------------------------- checkpoint

    def _new_checkpoint(self) -> None:
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True, exist_ok=True)
        if not (self.checkpoint / "metadata").exists():
            name = f"{self.random.randrange(10**8):08d}-aaaa"
            (self.checkpoint / "metadata").write_text(json.dumps({"id": name}))

    def _end(self, epoch_id: int) -> int:
        """Return the row before which an epoch ends, as its file says."""
        if epoch_id < 0:
            return 0
        try:
            lines = (self.checkpoint / "offsets" / str(epoch_id)).read_text().splitlines()
            return int(json.loads(lines[2])["logOffset"])
        except FileNotFoundError:
            return self.ends[epoch_id]

    def _plan(self, epoch_id: int) -> None:
        meta = json.dumps({"batchTimestampMs": int(time.time() * 1000)})
        end = min(self.source, self._end(epoch_id - 1) + self.random.randint(1, 5))
        self.ends[epoch_id] = end
        text = f'v1\n{meta}\n{{"logOffset":{end}}}'
        (self.checkpoint / "offsets" / str(epoch_id)).write_text(text)

    # ----------------------------------------------------------------------------------- drivers

    def drive(self, *, die: Failpoint | None = None, stay: bool = False, **sink: Any) -> str:
        """Start a driver over all that is there; return the error that refused it, if one did.

        :param die: the step at which it is killed, the second time.
        :param stay: it runs on afterwards, and reads what arrives no more.
        """
        if self.running:
            self._kill(self.running)
        self._new_checkpoint()
        process = subprocess.Popen(["sleep", "1000"])
        self.processes.append(process)
        self.running, self.in_order = process, False
        try:
            self._work(process, die, stay=stay, sink=sink)
        except Killed:
            self.tally.happened["killed"] += 1
            self._kill(process)
        except (LanceStreamError, FileNotFoundError) as error:  # the second is Spark's to raise
            self.tally.happened[type(error).__name__] += 1
            self._kill(process)
            return f"{type(error).__name__}: {error}"
        return ""

    def _work(
        self, process: Any, die: Failpoint | None, *, stay: bool, sink: dict[str, Any]
    ) -> None:
        options = SinkOptions.parse(
            {
                "uri": self.uri,
                "queryId": QUERY,
                "checkpointLocation": str(self.checkpoint),
                "watermarkEvery": self.random.choice([1, 3, 10]),
                **sink,
            }
        )
        files, left = open_files(str(self.checkpoint)), [2]
        reports = open_files(report_location(str(self.checkpoint)))

        def look() -> Any:
            return read_checkpoint(str(self.checkpoint), files, with_ends=True)

        def on_step(step: Failpoint) -> None:
            left[0] -= step is die
            if not left[0]:
                raise Killed

        policy = CommitPolicy(
            watermark_every=options.watermark_every,
            new_generation=options.new_generation,
            on_history_gap=options.on_history_gap,
            on_restore=options.on_restore,
            backoff=QUICK,
        )
        checkpoint, identity = look(), ProcessIdentity.of(process.pid)
        launch = new_launch_id()
        port = open_dataset(self.uri)
        session = DriverSession(
            port,
            QUERY,
            checkpoint,
            policy,
            launch_id=launch,
            look=look,
            heard=lambda driver: DriverObservation.read(reports, driver.launch_id).watermark,
            on_step=on_step,
        )
        session.prepare()
        refuse_corrupt(files, checkpoint, port, QUERY, session.watermark)
        driver = Driver(
            f"run-{launch}",
            json.loads((self.checkpoint / "metadata").read_text())["id"],
            str(self.checkpoint),
            host=identity.host,
            pid=identity.pid,
            start=identity.start,
            launch_id=launch,
            launched_by="lake/orders/manual/-1#1",
        )
        if session.take_over(driver):
            session.recheck()
        session.identify(driver)
        self._beat(session, launch, identity)
        seen = look()
        first = seen.in_flight if seen.in_flight is not None else seen.committed + 1
        rows = 0
        while True:
            if first > seen.planned:
                if self._end(first - 1) >= self.source:
                    break
                self._plan(first)
            rows += self._epoch(session, first)
            (self.checkpoint / "commits" / str(first)).write_text("v1\n{}")
            self._beat(session, launch, identity)
            first += 1
        self._finish = lambda: self._release(session, launch, rows)
        if not stay:
            self._finish()

    def _release(self, session: DriverSession, launch: str, rows: int) -> None:
        """End the running driver in order."""
        assert self.running
        released = session.release()
        reports = open_files(report_location(str(self.checkpoint)))
        summary = Summary(
            launch, QUERY, self.uri, EndReason.FINISHED, 0, rows, 0, 0, None, None,
            session.watermark, session.port.version, 0, released, 1.0,
        )  # fmt: skip
        write_summary(reports, summary)
        self._kill(self.running)
        self.in_order = True

    def _epoch(self, session: DriverSession, epoch_id: int) -> int:
        ids = range(self._end(epoch_id - 1), self._end(epoch_id))
        plan = session.begin(epoch_id)
        lines = (self.checkpoint / "offsets" / str(epoch_id)).read_text().splitlines()[2:]
        if plan.decision is not Decision.FULL_COMMIT:
            plan.finish()
            return 0
        table = pa.table({"id": pa.array(ids, pa.int64())})
        port: Any = plan.port
        fragments = list(write_fragments(table, port.dataset))
        epoch = Epoch(
            epoch_id,
            OutputMode.APPEND,
            fragments,
            len(ids),
            8 * len(ids),
            utc_now(),
            ends=EndOffsets.of(lines),
        )
        plan.commit(epoch)
        return len(ids)

    def _beat(self, session: DriverSession, launch: str, identity: ProcessIdentity) -> None:
        document = {
            "launchId": launch,
            "queryId": QUERY,
            "time": utc_now(),
            "state": "idle",
            "busySince": None,
            "driver": {
                **identity.to_json(),
                "token": session.owner.token if session.owner else None,
                "launchedBy": "lake/orders/manual/-1#1",
                "uiAddress": "",
            },
            "sink": {"watermark": session.watermark, "version": session.port.version},
        }
        reports = open_files(report_location(str(self.checkpoint)))
        write_heartbeat(reports, launch, document)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        if process is self.running:
            self.running = None

    def close(self) -> None:
        """End every process."""
        for process in self.processes:
            self._kill(process)

    # ----------------------------------------------------------------------------------- trouble

    def trouble(self) -> str:
        """Let something happen; return what."""
        acts = [
            self.restore,
            self.recreate,
            self.garbage,
            self.forget,
            self.freeze,
            self.kill,
            self.clean_up,
            self.older_checkpoint,
            self.delete_checkpoint,
            self.cut_file,
            self.nothing,
        ]
        act = self.random.choice(acts)
        act()
        return act.__name__

    def nothing(self) -> None:
        """Leave all as it is."""

    def restore(self) -> None:
        versions = [each["version"] for each in lance.dataset(self.uri).versions()]
        lance.dataset(self.uri, version=self.random.choice(versions)).restore()

    def recreate(self) -> None:
        shutil.rmtree(self.uri)
        lance.write_dataset(SCHEMA.empty_table(), self.uri)

    def garbage(self) -> None:
        word, value = self.random.choice(KEYS), self.random.choice(GARBAGE)
        open_dataset(self.uri).commit(Configure({key(word, QUERY): value}))

    def forget(self) -> None:
        words = KEYS if self.random.random() < 0.3 else (self.random.choice(KEYS),)
        known = dict(open_dataset(self.uri).config)
        gone = {key(word, QUERY): None for word in words if key(word, QUERY) in known}
        if gone:
            open_dataset(self.uri).commit(Configure(gone))

    def freeze(self) -> None:
        if self.running:
            self.running.send_signal(signal.SIGSTOP)
            for path in Path(report_location(str(self.checkpoint))).glob("*/heartbeat.json"):
                beat = json.loads(path.read_text())
                beat["time"] = "2026-01-01T00:00:00.000+00:00"
                path.write_text(json.dumps(beat))
                os.utime(path, (time.time() - 9_000,) * 2)

    def kill(self) -> None:
        if self.running:
            self._kill(self.running)

    def clean_up(self) -> None:
        self.unreported = self._unreported()
        if self.unreported and "trouble: older_checkpoint" in self.said:
            return
        dataset = lance.dataset(self.uri)
        dataset.optimize.compact_files()
        lance.dataset(self.uri).cleanup_old_versions(older_than=timedelta(0))

    def older_checkpoint(self) -> None:
        if self.unreported:
            return
        done = sorted(int(each.name) for each in self.checkpoint.glob("offsets/*"))
        for number in done[self.random.randint(0, len(done)) :]:
            for log in ("offsets", "commits"):
                (self.checkpoint / log / str(number)).unlink(missing_ok=True)

    def _unreported(self) -> bool:
        """Return whether the newest epoch is in no report: its driver died before the next one.

        If its version is then cleaned up, nothing tells an older copy of the checkpoint from the
        newest: the guarantees name that limit.
        """
        try:
            owner = decode_query(open_dataset(self.uri).config, QUERY, 1).owner
        except LanceStreamError:
            return True
        if owner is None:
            return True
        reports = open_files(report_location(str(self.checkpoint)))
        said = DriverObservation.read(reports, owner.driver.launch_id).watermark
        return said < exact_watermark(open_dataset(self.uri), QUERY).epoch

    def delete_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self._new_checkpoint() if self.random.random() < 0.5 else None

    def cut_file(self) -> None:
        if self.running:
            return  # a live driver has read it
        files = [each for each in self.checkpoint.rglob("*") if each.is_file()]
        if files:
            chosen = self.random.choice(files)
            chosen.write_bytes(chosen.read_bytes()[: self.random.randint(0, 5)])

    # -------------------------------------------------------------------------------------- truth

    def faults(self) -> str:
        """Return what is wrong in truth: rows, or that nobody runs the stream; empty if nothing."""
        counted = Counter(lance.dataset(self.uri).to_table()["id"].to_pylist())
        doubled = sum(times - 1 for times in counted.values())
        done = 0
        with suppress(FileNotFoundError, ValueError, IndexError):
            numbers = [int(each.name) for each in self.checkpoint.glob("commits/*")]
            done = self._end(max(numbers)) if numbers else 0
        missing = len(set(range(done)) - set(counted))
        if doubled:
            return f"{doubled} rows are doubled"
        if missing > self.declared:
            return f"{missing} rows are missing, {self.declared} were declared lost"
        if not self.in_order and self.running is None:
            return "nobody runs the stream"
        return ""

    # --------------------------------------------------------------------------------------- desk

    def check(self) -> dict[str, Any]:
        """Type the check."""
        ran = typed("check", self.uri, QUERY, "--checkpoint", str(self.checkpoint), "-o", "json")
        document: dict[str, Any] = ran.document
        document["status"] = ran.status
        return document

    def consult(self) -> bool:
        """Ask the desk and do what it says, until it is healthy; return whether it got there."""
        for _ in range(ROUNDS):
            report = self.check()
            fault = self.faults()
            codes = {each["code"] for each in report.get("findings", ())}
            if report["status"] == 0 and "LS205" in codes and self.running:
                self._kill(self.running)  # what would become of it was said: see to it now
                continue
            if report["status"] == 0 and codes:
                assert not fault, f"healthy, although {fault}: {report['findings'][:2]}"
                return True
            if "error" in report or not report["findings"]:
                self.tally.happened["refused to check"] += 1
                return False
            if not self.follow(report["findings"][0]):
                self.tally.happened[f"by hand {report['findings'][0]['code']}"] += 1
                return False
        raise AssertionError(f"not healthy after {ROUNDS} rounds: {self.said}")

    def follow(self, finding: dict[str, Any]) -> bool:
        """Do a finding's steps; return whether there was one that could be done."""
        steps = finding["steps"]
        self.said.append(f"{finding['code']} {finding['summary']}")
        self.tally.happened[finding["code"]] += 1
        answers = [each for each in steps if _ANSWER.match(each["text"])]
        chosen = self._chosen(answers)
        told = json.dumps([finding["summary"], finding["cause"], steps])
        lost = [int(each.replace(",", "")) for each in re.findall(r"\b(\d[\d,]*) rows\b", told)]
        epochs = re.search(r"the rows of epochs? 0(?: to (\d+))?, which are lost", told)
        if epochs:  # no version is left that could tell their number
            lost.append(self._end(int(epochs[1] or 0)))
        if gap := re.search(
            r"missing of epochs (\d+) to (\d+) is lost|of epochs (\d+) to (\d+) that are not there",
            told,
        ):
            first, last = map(int, filter(None, gap.groups()))
            lost.append(len(self._missing(range(self._end(first - 1), self._end(last)))))
        if "another query_id" in steps[0]["text"]:
            return False  # and another table: the rest of this one is not known
        if chosen and not chosen["command"] and not _STARTS.search(chosen["text"]):
            return False  # a backup, or a file, that nobody has here
        done = False
        for step in steps:
            if step in answers and step is not chosen:
                continue
            text, command = step["text"], step["command"]
            self.said.append(f"  {text} {command}")
            if command:
                assert not _PLACEHOLDER.search(command), command
                done |= self._type(command, text)
            elif _STARTS.search(text):
                self._start(text)
                done = True
        self.declared = max([self.declared, *lost])
        return done

    def _chosen(self, answers: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return one answer by chance; of an epoch in doubt, what a person sees in the table."""
        for each in answers:
            if found := re.search(r"--epoch (\d+) .*--(committed|missing)", each["command"]):
                first = 0 if "all epochs" in each["text"] else self._end(int(found[1]) - 1)
                there = not self._missing(range(first, self._end(int(found[1]))))
                if there == (found[2] == "committed"):
                    return each
        if any("--committed" in each["command"] for each in answers):
            return answers[-1]  # they are not all there
        return self.random.choice(answers) if answers else None

    def _missing(self, ids: range) -> set[int]:
        return set(ids) - set(lance.dataset(self.uri).to_table()["id"].to_pylist())

    def _start(self, text: str) -> None:
        """Start the stream, with the options that a step names."""
        options = _OPTIONS.search(text)
        refused = self.drive(**(ast.literal_eval(options[1]) if options else {}))
        self.said.append(f"  -> {refused or 'started'}")

    def _type(self, command: str, text: str) -> bool:
        program, *words = shlex.split(command)
        if words[0] == "stop" and self.running:
            self._finish()
        elif program == "lance-stream":
            ran = typed(*words)
            self.said.append(f"  -> {ran.status} {(ran.out + ran.err)[-300:]}")
            assert ran.status == 0, f"{command}: {ran.status} {ran.out}{ran.err}"
            self.in_order |= "--for-good" in words
        elif program == "airflow":
            self._start(text)
        else:
            subprocess.run(["bash", "-c", command], check=True, capture_output=True)
        return True

    def live(self) -> None:
        """Let it run, meet trouble, ask the desk, and at the end read everything."""
        for _ in range(self.random.randint(1, 3)):
            self.source += self.random.randint(1, 15)
            die = self.random.choice([None, *Failpoint])
            self.drive(die=die, stay=self.random.random() < 0.5)
        for _ in range(self.random.randint(1, 2)):
            self.said.append(f"trouble: {self.trouble()}")
            self.tally.happened[self.said[-1]] += 1
        if not self.consult():
            return
        if self.running:  # what a live driver would have put in order by itself is asked again
            self.kill()
            if not self.consult():
                return
        self.tally.happened["healthy at the end"] += 1
        self.source += 3
        refused = self.drive()
        assert not refused, f"healthy, and the next start is refused: {refused}"
        if self.declared == 0 or not self.faults():
            assert not self.faults(), self.faults()


@contextmanager
def _room() -> Iterator[Path]:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="desk-", dir=memory) as name:
        yield Path(name)


def histories(number: int, seed: int, first: int = 0) -> Tally:
    """Live so many histories; the seed decides them all."""
    tally = Tally()
    for each in range(first, first + number):
        name = f"{seed}-{each}"
        with _room() as root:
            history = History(root, name, tally)
            try:
                history.live()
            except Exception as error:
                tally.wrong[name] = "\n".join([f"{type(error).__name__}: {error}", *history.said])
            finally:
                history.close()
    return tally


def main() -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.desk.histories", description=__doc__)
    parser.add_argument("--histories", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    given = parser.parse_args()
    began = time.monotonic()
    tally = histories(given.histories, given.seed, given.first)
    for name, times in sorted(tally.happened.items()):
        print(f"{name:40}{times:>8}")
    for name, why in tally.wrong.items():
        print(f"\n--- {name}\n{why}")
    print(
        f"{given.histories} histories of seed {given.seed}: {len(tally.wrong)} wrong "
        f"{sorted(tally.wrong)[:10]}, {time.monotonic() - began:.0f} s"
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
