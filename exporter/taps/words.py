"""Words that come from outside, as values of a label."""

from __future__ import annotations

OTHER = "other"


class Words:
    """Admits the first ``most`` words; all that come later are ``other``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._words: set[str] = set()

    def admit(self, word: str, *, new: bool = True) -> str:
        """Return the word, or ``other``; without ``new`` only words that were admitted before."""
        if word not in self._words:
            if not new or len(self._words) >= self._most:
                return OTHER
            self._words.add(word)
        return word
