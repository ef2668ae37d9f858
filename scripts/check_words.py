"""Find banned words in the tracked text files. The list is `scripts/banned_words.txt`.

Prints each place with the plain word to use, then the count. Exits with 1 when there is a banned word.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

WORDS_FILE = Path(__file__).with_name("banned_words.txt")
# The list, texts of others, and files that programs write.
EXCLUDED = re.compile(r"(^|/)(banned_words\.txt|LICENSE|[^/]*\.lock|[^/]*_pb2(_grpc)?\.pyi?|[^/]*\.(png|svg|csv|gz))$")


class Finding(NamedTuple):
    """One banned word: line number, the word as written, the plain word."""

    line: int
    word: str
    plain: str


def parse_words(text: str) -> dict[str, str]:
    """Return the banned words with their plain words. Raises ValueError for a line without both."""
    words = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, separator, plain = line.partition("=")
        if not separator or not word.strip() or not plain.strip():
            raise ValueError(f"not WORD = PLAIN WORD: {line!r}")
        words[word.strip()] = plain.strip()
    return words


def find_words(text: str, words: dict[str, str]) -> Iterator[Finding]:
    """Yield the banned words of a text, also those inside names such as ``_word_later`` and across a line break."""
    longest_first = sorted(words, key=len, reverse=True)
    alternatives = "|".join(re.escape(word).replace(r"\ ", r"[\s#*_]+") for word in longest_first)
    for match in re.finditer(rf"(?<![A-Za-z])({alternatives})(?![A-Za-z])", text, re.IGNORECASE):
        plain = words[re.sub(r"[\s#*_]+", " ", match[1]).lower()]
        yield Finding(text.count("\n", 0, match.start()) + 1, match[1], plain)


def tracked_files(root: Path) -> Iterable[str]:
    """Return the paths of the files that git tracks or would track."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    return sorted(filter(None, subprocess.check_output(command, text=True).split("\0")))


def main() -> int:
    """Search the repository; return the exit code."""
    root = WORDS_FILE.parents[1]
    words = parse_words(WORDS_FILE.read_text())
    count = 0
    for path in tracked_files(root):
        if EXCLUDED.search(path) or not (root / path).is_file():
            continue
        try:
            text = (root / path).read_text()
        except UnicodeDecodeError:
            continue
        for finding in find_words(text, words):
            count += 1
            print(f"{path}:{finding.line}: {' '.join(finding.word.split())!r}: write {finding.plain}")
    print(f"banned words: {count}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
