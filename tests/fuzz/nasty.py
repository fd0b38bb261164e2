"""Values that readers stumble over, and small damage to what was right."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

TEXTS = [
    *(
        "",
        " ",
        "\n",
        "\t",
        "\x00",
        "\x1b[2J",
        "a\n",
        " a",
        "a ",
        "ü",
        "\u202e",
        "\ud800",
        "👩‍👩‍👧",
        "a" * 300,
    ),
    *("0", "1", "-1", "1.9", "1.0", "01", "+1", "1_0", " 1 ", "1\n", "１", "²", "1e3", "9" * 19),
    *("9" * 40, "9" * 5000, "-" + "9" * 30, "NaN", "Infinity", "-Infinity", "nan", "0x10", "true"),
    *(str(2**31), str(2**63 - 1), str(2**63), str(2**64), str(-(2**63))),
    *("True", "FALSE", "null", "None", "{}", "[]", "{", "[" * 3000, '{"a":' * 3000, '"x"', "\\"),
    *("/", "//", "/x", "/x/", "/x\n", "x", "./x", "../x", "/x/../y", "/%2e%2e/x", "~", "C:\\x"),
    *(
        "s3://",
        "s3:///",
        "s3://b",
        "s3://b/x",
        "s3a://b/x",
        "s3:/b/x",
        "file:",
        "file://",
        "file:///",
    ),
    *(
        "file:/x",
        "file:///x",
        "file://host/x",
        "FILE:///x",
        "a:b",
        "a:",
        ":",
        "://",
        "s3://[x/y",
        "lance://",
    ),
    *(
        "fail",
        "committed:",
        "committed:1",
        "committed:1@2",
        "missing:0@0",
        "committed:-1",
        "committed:²",
        "committed:１",
    ),
    *(
        "committed:" + "9" * 5000,
        "missing:1 ",
        "newGeneration",
        "append",
        "APPEND",
        "update",
        "complete",
    ),
    *(
        "availableNow",
        "10 seconds",
        "0 seconds",
        "1 minute",
        "999999999999999999 days",
        "² seconds",
    ),
    *("2026-11-20T14:00:00.000+00:00", "2026-11-20T14:00:00Z", "2026-11-20", "2026-11-20T14:00:00"),
    *(
        "0001-01-01T00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "noon",
        "20261120T140000000Z-1a2b3c4d",
    ),
    *(
        "id",
        "id,grp",
        "id,id",
        "v:8",
        "v:8,v:9",
        "v:²",
        ":8",
        "m:f",
        "m.n:f",
        "m:",
        "compact",
        "active",
    ),
    *(
        "released",
        "stopped",
        "dead",
        "restart",
        "reencode",
        "2.1",
        "stable",
        "banana",
        "q",
        "orders",
    ),
]
WHOLES = [
    0,
    1,
    -1,
    2,
    7,
    255,
    -7,
    2**31 - 1,
    2**31,
    2**32,
    10**12,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
]
FLOATS = [0.0, -0.0, 1.0, 1.9, -1.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")]


def nested(depth: int) -> Any:
    """Return lists or mappings in each other, so deep that recursion ends before they do."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def strange(random: Random) -> Any:
    """Return what JSON cannot carry, but a DAG's author can pass."""
    return random.choice(
        [
            b"bytes",
            b"\xff",
            Decimal("1"),
            datetime(2026, 1, 1, tzinfo=UTC),
            timedelta(seconds=1),
            object(),
            {1, 2},
            (1,),
            lambda: 1,
            10**5000,
            nested(5000),
            {None: 1},
            {1: "x"},
            [None],
            range(3),
        ]
    )


def value(random: Random, depth: int = 2) -> Any:
    """Return any value that JSON can carry."""
    draw = random.random()
    if draw < 0.5:
        return text(random)
    if draw < 0.65:
        return random.choice(WHOLES) if random.random() < 0.7 else random.randint(-(2**70), 2**70)
    if draw < 0.75:
        return random.choice(FLOATS)
    if draw < 0.85 or not depth:
        return random.choice([None, True, False])
    count = random.randrange(3)
    if draw < 0.93:
        return [value(random, depth - 1) for _ in range(count)]
    return {text(random): value(random, depth - 1) for _ in range(count)}


def text(random: Random) -> str:
    draw = random.random()
    if draw < 0.8:
        return random.choice(TEXTS)
    if draw < 0.9:
        return "".join(chr(random.randrange(32, 127)) for _ in range(random.randrange(12)))
    return "".join(chr(random.randrange(0x11_0000)) for _ in range(random.randrange(6)))


def damaged(random: Random, document: Any, *, plain: bool = True) -> Any:
    """Return a document with none to three of its parts replaced, removed or added.

    :param plain: only with what JSON can carry.
    """
    document = copy.deepcopy(document)
    for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
        place, name = _part(random, document)
        if place is None:
            return value(random)
        draw = random.random()
        if draw < 0.15 and isinstance(place, dict):
            del place[name]
        elif draw < 0.25 and isinstance(place, dict):
            place[text(random)] = value(random)
        else:
            place[name] = value(random) if plain or random.random() < 0.7 else strange(random)
    return document


def _part(random: Random, document: Any) -> tuple[Any, Any]:
    """Choose one item of a document, at any depth."""
    places = []
    pending = [document]
    while pending:
        place = pending.pop()
        items = place.items() if isinstance(place, dict) else ()
        items = enumerate(place) if isinstance(place, list) else items
        for name, item in items:
            places.append((place, name))
            pending.append(item)
    return random.choice(places) if places else (None, None)


def text_damaged(random: Random, good: str) -> bytes:
    """Return a text as bytes that may be cut, changed or no UTF-8."""
    content = good.encode("utf-8", "surrogatepass")
    for _ in range(random.choice([0, 1, 1, 2])):
        content = _once_damaged(random, content)
    return content


def _once_damaged(random: Random, content: bytes) -> bytes:
    place = random.randrange(len(content) + 1)
    before, after = content[:place], content[place:]
    inserted = text(random).encode("utf-8", "surrogatepass")
    other_number = random.choice([b"NaN", b"1e999", b"9" * 5000, b"1.0", "１".encode()])
    return random.choice(
        [
            before,
            before + bytes([random.randrange(256)]) + after[1:],
            before + inserted + after,
            content.replace(b"1", other_number, 1),
            b"",
            random.randbytes(random.randrange(40)),
        ]
    )


def json_damaged(random: Random, document: Any) -> bytes:
    """Return a document as JSON, damaged as a value, as text, or both."""
    changed = damaged(random, document)
    good = json.dumps(changed, ensure_ascii=random.random() < 0.5)
    return (
        text_damaged(random, good)
        if random.random() < 0.4
        else good.encode("utf-8", "surrogatepass")
    )
