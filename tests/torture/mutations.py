"""Damage to bytes and texts: flipped bits, cuts, splices, wrong lengths, strange numbers."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 65536, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64)
WORDS = (
    *("0", "-1", "1e12", "1e400", "nan", ".inf", "1" * 40, "1" * 5000, "1000000000000", "999999999", "2001-99-99"),
    *("-", "--", "true", "null", "~", "''", '"', "[]", "{}", "[" * 60, "]", "{a: &a [*a]}", "*a", "&a", "<<:"),
    *(
        "!!python/object:os.system x",
        "../../etc/passwd",
        "/",
        "[/]",
        "[bold]",
        ":smile:",
        "\x00",
        "\ud800",
        "日本",
        "%s",
        "(a+)+$",
    ),
    *("hf-hub:a/b", "local-dir:/tmp", "smp:unet/tu-hf-hub:a/b", "checkpoint_path"),
)


def mutate_bytes(rng: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Damage a file in one to four ways."""
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_BYTES)(rng, out, others)
    return bytes(out)


@dataclass(frozen=True)
class Target:
    """Valid inputs, a function that reads one (it returns, raises a UserError, or exits with 2), and their damage."""

    seeds: Sequence[bytes]
    read: Callable[[bytes], object]
    mutate: Mutation = mutate_bytes


def _place(rng: random.Random, out: bytearray) -> int:
    """A place in a file, half of the time near its start, where headers are."""
    return rng.randrange(min(len(out), 512) if rng.random() < 0.5 else len(out)) if out else 0


def _flip(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    for _ in range(rng.choice((1, 1, 8))):
        if out:
            out[_place(rng, out)] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    if out:
        out[_place(rng, out)] = rng.choice((0, 255, rng.randrange(256)))


def _cut(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    del out[_place(rng, out) :]


def _remove(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    start = _place(rng, out)
    del out[start : start + rng.choice((1, 4, 64, 1024))]


def _splice(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    other = rng.choice(others)
    start, length = rng.randrange(len(other)), rng.choice((1, 8, 64, 4096))
    place = _place(rng, out)
    out[place : place + rng.choice((0, length))] = other[start : start + length]


def _repeat(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    start, length = _place(rng, out), rng.choice((1, 16, 256))
    out[start:start] = out[start : start + length] * rng.choice((1, 10, 1000))


def _length(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    form = rng.choice("<>") + rng.choice("HIIQfd")
    size = struct.calcsize(form)
    if len(out) >= size:
        number = rng.choice(NUMBERS)
        place = min(_place(rng, out), len(out) - size)
        if form[1] in "HIQ":
            number %= 1 << (8 * size)
        struct.pack_into(form, out, place, number)


_BYTES: tuple[Callable[[random.Random, bytearray, Sequence[bytes]], None], ...] = (
    _flip,
    _flip,
    _set,
    _cut,
    _remove,
    _splice,
    _repeat,
    _length,
    _length,
)


def mutate_text(rng: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Damage a text: a word becomes a strange one, lines move or repeat; sometimes its bytes are damaged instead."""
    if rng.random() < 0.25:
        return mutate_bytes(rng, content, others)
    text = content.decode(errors="surrogateescape")
    for _ in range(rng.choice((1, 1, 2, 4))):
        text = rng.choice((_word, _word, _number, _lines))(rng, text)
    return text.encode(errors="surrogatepass")


def _word(rng: random.Random, text: str) -> str:
    return _replaced(rng, text, r"[\w.:/#-]+", rng.choice(WORDS))


def _number(rng: random.Random, text: str) -> str:
    number = rng.choice(NUMBERS) * rng.choice((1, -1))
    return _replaced(rng, text, r"\d+(\.\d+)?", rng.choice((str(number), str(number / 7), f"[{number}]")))


def _replaced(rng: random.Random, text: str, pattern: str, new: str) -> str:
    found = list(re.finditer(pattern, text))
    if not found:
        return text + new
    place = rng.choice(found)
    return text[: place.start()] + new + text[place.end() :]


def _lines(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i : i + rng.choice((0, 1))] = [lines[j]] * rng.choice((0, 1, 2, 100))
    return "".join(lines)
