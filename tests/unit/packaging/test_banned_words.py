"""The search for banned words (`scripts/check_words.py`)."""

from __future__ import annotations

import pytest

import check_words

# Assembled, so that the search does not find this file.
FORBIDDEN = "an" + "ew"
PHRASE = ("as", "it", "is")
WORDS = {FORBIDDEN: "again", " ".join(PHRASE): "unchanged"}


def found(text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.plain) for finding in check_words.find_words(text, WORDS)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"start {FORBIDDEN}", [(1, "again")]),
        (f"one\ntwo {FORBIDDEN.upper()}.", [(2, "again")]),
        (f"def _{FORBIDDEN}_once():", [(1, "again")]),
        (f"re{FORBIDDEN} {FORBIDDEN}s", []),
        (f"kept {PHRASE[0]} {PHRASE[1]}\n    # {PHRASE[2]}.", [(1, "unchanged")]),
        ("plain text", []),
    ],
)
def test_find_words(text: str, expected: list[tuple[int, str]]) -> None:
    assert found(text) == expected


def test_the_list_is_well_formed_and_its_words_are_found() -> None:
    words = check_words.parse_words(check_words.WORDS_FILE.read_text())
    assert len(words) >= 20
    for word, plain in words.items():
        assert [finding.plain for finding in check_words.find_words(f"x {word} y", words)] == [plain]


def test_a_line_without_a_plain_word_is_refused() -> None:
    with pytest.raises(ValueError, match="WORD = PLAIN WORD"):
        check_words.parse_words("word =\n")
