"""What may be typed: every command that looks, with arguments of any form, run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from random import Random

from airflow_provider_lance.cli.command_spec import Argument, Command
from airflow_provider_lance.cli.commands import COMMANDS
from tests.fuzz.nasty import json_damaged, text, text_damaged
from tests.golden.written import read
from tests.support.cli import typed
from tests.support.wreck import LAUNCH, Wreck

LEFT_OUT = {"doctor", "metrics"}
"""One starts Java at each call, the other serves until it is ended."""


def commands(
    tree: tuple[Command, ...], before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Return every command with the words that name it."""
    for each in tree:
        words = (*before, each.name)
        if each.commands:
            yield from commands(each.commands, words)
        elif each.name not in LEFT_OUT:
            yield words, each


class CommandLine:
    """Types commands at a small real dataset that a stream has written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._commands = list(commands(COMMANDS))

    @cached_property
    def _uri(self) -> str:
        self._folder.mkdir(parents=True)
        wreck = Wreck(self._folder)
        wreck.run(2, released=True)
        return wreck.uri

    def make(self, random: Random) -> list[str]:
        """Return what to type after the program's name. No word makes a command write."""
        if random.random() < 0.05:
            return [text(random) for _ in range(random.randrange(4))]
        words, command = random.choice(self._commands)
        typed_words = list(words)
        for argument in command.arguments:
            typed_words += self._said(random, argument)
        if command.name == "watch":  # it would go on
            typed_words += ["--count", "1", "--interval", "0.001"]
        return [each.replace("\x00", "") for each in typed_words]  # no argument can hold one

    def _said(self, random: Random, argument: Argument) -> list[str]:
        flag, good = argument.flags[-1], random.random() < 0.7
        if flag == "uri":
            return [self._uri if good else self._near(random)]
        if flag == "uris":
            first = self._uri if good else self._near(random)
            return [first, *random.choice([[], ["orders"], [self._near(random)], [text(random)]])]
        if flag == "query_id":
            return random.choice([["orders"], [], [] if good else [text(random)]])
        if flag in (
            "--yes",
            "--conn-id",
            "--debug",
            "--all",
        ):  # it writes; is not there; shows tracebacks
            return []
        required = argument.settings.get("required", False)
        if not required and random.random() < 0.8:
            return []
        if argument.settings.get("action") == "store_true":
            return [flag]
        if flag in ("--checkpoint", "--storage-options-file"):
            return [flag, self._near(random)]
        word = (
            random.choice(argument.settings.get("choices") or ("1", "3", "2s"))
            if good
            else text(random)
        )
        return [flag, word] if random.random() < 0.5 else [f"{flag}={word}"]

    def _near(self, random: Random) -> str:
        """Return a place that this machine can tell about without asking a network."""
        word = text(random)
        remote = (
            word.partition("://")[0].lower() not in ("file", "")
            and "://" in word
            and word[-1] != "/"
        )
        return (
            "missing.lance"
            if remote or (word.startswith(("s3:", "s3a:")) and len(word) > 6)
            else word
        )

    def read(self, words: list[str]) -> None:
        """Type it, and check how it ended."""
        check(words)


def check(words: list[str]) -> None:
    """Type a command, and check how it ended."""
    ran = typed(*words)
    assert ran.status in (0, 1, 2, 3), ran
    assert "Traceback" not in ran.err, ran.err
    assert "--debug shows where" not in ran.err, ran.err
    if ran.status == 2:
        said = [line for line in ran.err.splitlines() if "error: " in line]
        planned = "--yes" in ran.err or "--yes" in ran.out
        one_of_many = " unreadable " in ran.out or '"errors": [' in ran.out
        assert len(said) == 1 or planned or one_of_many, ran.err


class LookAtReports:
    """Looks at a real dataset whose driver left reports and a checkpoint of any content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _wreck(self) -> Wreck:
        self._folder.mkdir(parents=True)
        wreck = Wreck(self._folder)
        wreck.run(3, unlogged=1, heartbeat_age=timedelta(seconds=5))
        return wreck

    def make(self, random: Random) -> tuple[str, dict[str, bytes]]:
        """Return a command, and the files to write below the checkpoint's folder first."""
        checkpoint = self._wreck.checkpoint.name
        beat = json_damaged(random, read("heartbeat") | {"launchId": LAUNCH, "queryId": "orders"})
        summary = json_damaged(random, read("summary")) if random.random() < 0.3 else b""
        offsets = text_damaged(random, 'v1\n{"batchTimestampMs":1764000000000}\n{"logOffset":1}')
        files = {
            f"{checkpoint}.reports/{LAUNCH}/heartbeat.json": beat,
            f"{checkpoint}.reports/{LAUNCH}/summary.json": summary,
            f"{checkpoint}/offsets/2": offsets,
        }
        return random.choice(["status", "check", "epochs"]), files

    def read(self, given: tuple[str, dict[str, bytes]]) -> None:
        """Write the files, look, and check how that ended."""
        command, files = given
        for name, content in files.items():
            (self._wreck.checkpoint.parent / name).write_bytes(content)
        check([command, self._wreck.uri, *(["--offsets"] if command == "epochs" else [])])
