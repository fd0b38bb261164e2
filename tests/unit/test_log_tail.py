from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.drivers.rotating_log import LogTail, RotatingLog, last_lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "driver.log"


def add(path: Path, content: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def rotate(path: Path, files: int = 3) -> None:
    for number in range(files - 1, 0, -1):
        older = Path(f"{path}.{number - 1}") if number > 1 else path
        if older.exists():
            older.replace(f"{path}.{number}")


def test_a_missing_log_is_empty(path: Path) -> None:
    tail = LogTail(path)
    assert tail.read() == []
    assert last_lines(path, 5) == []
    add(path, "a\n")
    assert tail.read() == ["a"]


def test_each_look_shows_what_is_new(path: Path) -> None:
    tail = LogTail(str(path))
    add(path, "a\nb\n")
    assert tail.read() == ["a", "b"]
    assert tail.read() == []
    add(path, "c\r\n\n")
    assert tail.read() == ["c", ""]


def test_of_many_lines_come_the_newest_and_a_count(path: Path) -> None:
    tail = LogTail(path, lines=2)
    add(path, "".join(f"{n}\n" for n in range(100)))
    counted, *lines = tail.read()
    assert (re.findall(r"\d+", counted), lines) == (["98"], ["98", "99"])
    add(path, "a\nb\nc\n")
    counted, *lines = tail.read()
    assert (re.findall(r"\d+", counted), lines) == (["1"], ["b", "c"])
    add(path, "d\n")
    assert tail.read() == ["d"]


def test_a_count_goes_over_many_blocks(path: Path) -> None:
    add(path, "x" * 99 + "\n")
    add(path, ("y" * 99 + "\n") * 20_000)
    counted, *lines = LogTail(path, lines=3).read()
    assert (re.findall(r"\d+", counted), lines) == (["19998"], ["y" * 99] * 3)


def test_half_a_line_waits_for_its_end(path: Path) -> None:
    tail = LogTail(path)
    add(path, "a\nhal")
    assert tail.read() == ["a"]
    assert tail.half_line == "hal"
    add(path, "f a li")
    assert tail.read() == []
    add(path, "ne\n")
    assert tail.read() == ["half a line"]
    assert tail.half_line == ""


def test_bytes_that_are_no_text_are_replaced(path: Path) -> None:
    tail = LogTail(path)
    add(path, b"ok \xff\xfe\n" + "ä".encode()[:1])
    assert tail.read() == ["ok ��"]
    add(path, "ä\n".encode()[1:])
    assert tail.read() == ["ä"]


@pytest.mark.parametrize("letter", ["x", "ä", "🐙"])
def test_a_long_line_is_cut(path: Path, letter: str) -> None:
    add(path, letter * 2000 + "\n" + letter * 2001 + "\n")
    assert LogTail(path).read() == [letter * 2000, letter * 2000 + "…"]


def test_a_line_without_an_end_needs_no_memory(path: Path) -> None:
    tail = LogTail(path)
    for _ in range(20):
        add(path, b"z" * 100_000)
        assert tail.read() == []
        assert len(tail._half) < 10_000
    add(path, "\nnext\n")
    assert tail.read() == ["z" * 2000 + "…", "next"]


def test_rotation_loses_nothing(path: Path) -> None:
    tail = LogTail(path)
    add(path, "a\n")
    assert tail.read() == ["a"]
    add(path, "b\nc1")
    rotate(path)
    assert tail.read() == ["b"], "renamed, and not made anew yet"
    add(path, "c2\nd\n")
    assert tail.read() == ["c1c2", "d"]


def test_several_rotations_lose_nothing_that_is_still_there(path: Path) -> None:
    tail = LogTail(path)
    add(path, "a\n")
    assert tail.read() == ["a"]
    for line in "bcd":
        add(path, f"{line}\n")
        rotate(path, files=4)
    add(path, "e\n")
    assert tail.read() == ["b", "c", "d", "e"]


def test_in_the_middle_of_a_rotation_one_file_is_missing(path: Path) -> None:
    tail = LogTail(path)
    add(path, "a\n")
    assert tail.read() == ["a"]
    add(path, "b\n")
    path.replace(f"{path}.2")
    add(path, "c\n")
    assert tail.read() == ["b", "c"]


def test_what_was_rotated_out_is_gone(path: Path) -> None:
    tail = LogTail(path)
    add(path, "a\n")
    assert tail.read() == ["a"]
    kept = path.open("rb")  # or the next file is given the same inode
    with kept:
        path.unlink()
        add(path, "longer than the first\n")
        assert tail.read() == ["longer than the first"]


def test_tail_starts_at_the_beginning_after_a_truncation(path: Path) -> None:
    tail = LogTail(path)
    add(path, "first\nhalf")
    assert tail.read() == ["first"]
    os.truncate(path, 0)
    add(path, "new\n")
    assert tail.read() == ["new"]


def test_tail_from_the_end_shows_new_lines_only(path: Path) -> None:
    add(path, "old\n")
    tail = LogTail(path, from_end=True)
    assert tail.read() == []
    add(path, "new\n")
    assert tail.read() == ["new"]


def test_from_the_end_a_line_comes_whole(path: Path) -> None:
    add(path, "old\n" * 50_000 + "begun")
    tail = LogTail(path, from_end=True)
    add(path, ", ended\n")
    assert tail.read() == ["begun, ended"]


def test_from_the_end_of_a_log_that_is_not_there(path: Path) -> None:
    tail = LogTail(path, from_end=True)
    add(path, "new\n")
    assert tail.read() == ["new"]


def test_the_last_lines_reach_back_over_a_rotation(path: Path) -> None:
    add(path, "a\nb\n")
    rotate(path)
    add(path, "c\nno end")
    assert last_lines(path, 3) == ["b", "c", "no end"]
    assert last_lines(path, 1) == ["no end"]
    assert last_lines(path, 9) == ["a", "b", "c", "no end"]


@given(
    pieces=st.lists(
        st.lists(st.text("abc", max_size=30), max_size=20).map(
            lambda lines: "".join(f"{line}\n" for line in lines)
        ),
        max_size=15,
    ),
    cut=st.integers(0, 40),
)
def test_every_line_is_shown_or_counted(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], cut: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "driver.log"
    log, tail = RotatingLog(path, size=300, files=50), LogTail(path, lines=4)
    seen: list[str] = []
    count = 0
    for piece in pieces:
        for part in (piece[:cut], piece[cut:]):
            log.write(part.encode())
            lines = tail.read()
            if lines and lines[0].endswith("before these)"):
                count += int(lines.pop(0)[1:].split()[0])
            seen += lines
            count += len(lines)
    log.close()
    written = "".join(pieces).split("\n")[:-1]
    assert count == len(written)
    assert seen[-4:] == written[-len(seen[-4:]) :] or not seen
