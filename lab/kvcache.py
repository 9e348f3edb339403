"""A paged KV cache with block reuse.

As in TensorRT-LLM's block manager (kvCacheManager.cpp), full blocks of a prompt are identified by
their content and may be shared.  Released blocks count as free and stay reusable until they are
evicted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Allocation:
    """The blocks of one sequence: content keys of shared ones, number of private ones."""

    shared: list[int] = field(default_factory=list)
    private: int = 0

    def __len__(self) -> int:
        return len(self.shared) + self.private


class BlockPool:
    """KV-cache blocks; counters are cumulative and in blocks.

    ``alloc_new`` blocks were empty when allocated; the rest of ``alloc_total`` were evicted first.
    """

    def __init__(self, blocks: int, tokens_per_block: int) -> None:
        self.blocks = blocks
        self.tokens_per_block = tokens_per_block
        self.alloc_total = self.alloc_new = self.reused = self.missed = 0
        self._holders: dict[int, int] = {}
        self._reusable: dict[int, None] = {}
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks held by sequences."""
        return len(self._holders) + self._private

    @property
    def free(self) -> int:
        """Blocks that can be allocated, those with reusable content included."""
        return self.blocks - self.used

    def resize(self, blocks: int) -> None:
        """Change the number of blocks; reusable content goes first, held blocks stay."""
        self.blocks = blocks
        for key in list(self._reusable)[: max(0, len(self._reusable) - max(0, self.free))]:
            del self._reusable[key]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The four counters: allocated in total, allocated empty, reused, missed."""
        return self.alloc_total, self.alloc_new, self.reused, self.missed

    def keys(self, prompt: Sequence[Hashable]) -> list[int]:
        """Return the content keys of the prompt's full blocks; each key covers its prefix."""
        keys: list[int] = []
        for end in range(self.tokens_per_block, len(prompt) + 1, self.tokens_per_block):
            chunk = tuple(prompt[end - self.tokens_per_block : end])
            keys.append(hash((keys[-1] if keys else None, chunk)))
        return keys

    def size(self, tokens: int) -> int:
        """Return the number of blocks for a number of tokens."""
        return -(-tokens // self.tokens_per_block)

    def cost(self, keys: Sequence[int], tokens: int) -> int:
        """Return the number of free blocks that :meth:`open` would allocate."""
        cached = self._cached_keys(keys, tokens)
        return self.size(tokens) - sum(key in self._holders for key in cached)

    def open(self, keys: Sequence[int], tokens: int) -> tuple[Allocation, int]:
        """Allocate blocks for `tokens` tokens; also return the number of cached tokens."""
        cached = self._cached_keys(keys, tokens)
        self.reused += len(cached)
        self.missed += len(keys) - len(cached)
        for key in cached:
            self._reusable.pop(key, None)
            self._hold(key)
        allocation = Allocation(shared=list(cached))
        self.grow(allocation, tokens)
        return allocation, len(cached) * self.tokens_per_block

    def grow(self, allocation: Allocation, tokens: int) -> None:
        """Grow the allocation to `tokens` tokens; raises RuntimeError if free blocks run out."""
        missing = max(0, self.size(tokens) - len(allocation))
        if missing > self.free:
            raise RuntimeError(f"{missing} KV-cache blocks needed, {self.free} free")
        empty = self.free - len(self._reusable)
        for key in list(self._reusable)[: max(0, missing - empty)]:
            del self._reusable[key]
        self.alloc_total += missing
        self.alloc_new += min(missing, empty)
        self._private += missing
        allocation.private += missing

    def publish(self, allocation: Allocation, keys: Iterable[int]) -> None:
        """Publish the computed prompt blocks of a sequence for reuse."""
        for key in keys:
            if key not in self._holders and key not in self._reusable:
                self._hold(key)
                allocation.shared.append(key)
                allocation.private -= 1
                self._private -= 1

    def close(self, allocation: Allocation) -> None:
        """Release all blocks; shared ones stay reusable, evicted from the end of the prompt."""
        self._private -= allocation.private
        for key in reversed(allocation.shared):
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._reusable[key] = None
        allocation.shared.clear()
        allocation.private = 0

    def _hold(self, key: int) -> None:
        self._holders[key] = self._holders.get(key, 0) + 1

    def _cached_keys(self, keys: Sequence[int], tokens: int) -> Sequence[int]:
        """Return the cached leading blocks; the last token is always computed."""
        limit = min(len(keys), (tokens - 1) // self.tokens_per_block)
        misses = (
            n
            for n in range(limit)
            if keys[n] not in self._holders and keys[n] not in self._reusable
        )
        return keys[: next(misses, limit)]
