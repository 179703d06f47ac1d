"""Synthetic training data, written by the standard library alone: small, learnable, the same on every machine."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable

# A document counts up in steps of its own: what comes next is learnable, so that a loss can fall in few steps.
_DOCUMENTS = 200
_CORPUS = 1000  # documents of a corpus: a part of a thousandth, as in the split 949,50,1, has one
_LENGTH = 400
_MERGES = ("t h", "h e", "i n", "e r", "a n")
_WORDS = ("the", "then", "other", "another", "inner", "thin", "hand", "ran", "hen", "tin")
_UINT16 = 8  # the number of the type in Megatron's index files
# Every name in it is a class that has every name: one may be derived from, and nothing of it does anything.
_UNUSED = """class _Names(type):
    def __getattr__(cls, name):
        return cls


class _Unused(metaclass=_Names):
    def __getattr__(self, name):
        raise AttributeError("%s: this module stands in for one that is not used" % name)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Unused
"""


def write_gpt2(folder: str) -> None:
    """GPT-2's files for Megatron: `gpt2-vocab.json`, `gpt2-merges.txt`, `data_text_document.bin` and `.idx`."""
    write_file("vocabulary", os.path.join(folder, "gpt2-vocab.json"))
    write_file("merges", os.path.join(folder, "gpt2-merges.txt"))
    end = len(_vocabulary()) - 1
    documents = [_document(number) + [end] for number in range(_DOCUMENTS)]
    with open(os.path.join(folder, "data_text_document.bin"), "wb") as binary:
        for tokens in documents:
            binary.write(struct.pack(f"<{len(tokens)}H", *tokens))
    with open(os.path.join(folder, "data_text_document.idx"), "wb") as binary:
        binary.write(_index([len(tokens) for tokens in documents]))


def write_file(kind: str, path: str) -> None:
    """One text file: GPT-2's `vocabulary` or `merges`; a `corpus`, a JSON line a document, or `sequences`, the same
    under that key; `unused`, a module that stands in for one that is imported and not used. Raises KeyError.
    """
    text = _FILES[kind]()
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _corpus(key: str = "text") -> str:
    """Documents that go through the words in steps of their own, as `_document` goes through numbers."""
    lines = []
    for number in range(_CORPUS):
        words = [_WORDS[(number * 7 + place * (1 + number % 3)) % len(_WORDS)] for place in range(_LENGTH)]
        lines.append(json.dumps({key: " ".join(words)}) + "\n")
    return "".join(lines)


def _vocabulary() -> list[str]:
    """GPT-2's 256 symbols, one for each byte, merges, and last what ends a document.

    Printable characters are themselves, the others start at U+0100.
    """
    plain = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    others = [byte for byte in range(256) if byte not in plain]
    symbols = [chr(byte) for byte in plain] + [chr(256 + number) for number in range(len(others))]
    return symbols + [merge.replace(" ", "") for merge in _MERGES] + ["<|endoftext|>"]


def _document(number: int) -> list[int]:
    return [(number * 7 + position * (1 + number % 3)) % 200 for position in range(_LENGTH)]


def _index(lengths: list[int]) -> bytes:
    """Megatron's `.idx`: head, type, counts, length and byte position of every document, and where documents begin."""
    positions = [2 * sum(lengths[:number]) for number in range(len(lengths))]
    count = len(lengths)
    parts = [b"MMIDIDX\x00\x00", struct.pack("<QBQQ", 1, _UINT16, count, count + 1)]
    parts.append(struct.pack(f"<{count}i", *lengths))
    parts.append(struct.pack(f"<{count}q", *positions))
    parts.append(struct.pack(f"<{count + 1}q", *range(count + 1)))
    return b"".join(parts)


_FILES: dict[str, Callable[[], str]] = {
    "vocabulary": lambda: json.dumps({symbol: number for number, symbol in enumerate(_vocabulary())}),
    "merges": lambda: "\n".join(("#version: 0.2",) + _MERGES) + "\n",
    "corpus": _corpus,
    "sequences": lambda: _corpus("sequence"),
    "unused": lambda: _UNUSED,
}
