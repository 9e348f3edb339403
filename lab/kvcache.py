"""A paged KV cache with block reuse.

As in TensorRT-LLM's block manager (kvCacheManager.cpp), full blocks of a prompt are identified by
their content and may be shared.  Released blocks stay reusable until the space is needed, and count
as free.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Allocation:
    """The blocks that one sequence holds: shared ones by content key, private ones by number."""

    shared: list[int] = field(default_factory=list)
    private: int = 0

    def __len__(self) -> int:
        return len(self.shared) + self.private


class BlockPool:
    """A fixed number of blocks; every count is in blocks and the counters run since the start.

    ``alloc_new`` blocks were empty when taken, the rest of ``alloc_total`` had to be evicted.
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
        """Blocks that can be taken, those with reusable content included."""
        return self.blocks - self.used

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The four counters: allocated in all, allocated empty, reused, missed."""
        return self.alloc_total, self.alloc_new, self.reused, self.missed

    def keys(self, prompt: Sequence[Hashable]) -> list[int]:
        """Return the content keys of the prompt's full blocks; each covers all before it too."""
        keys: list[int] = []
        for end in range(self.tokens_per_block, len(prompt) + 1, self.tokens_per_block):
            chunk = tuple(prompt[end - self.tokens_per_block : end])
            keys.append(hash((keys[-1] if keys else None, chunk)))
        return keys

    def size(self, tokens: int) -> int:
        """Return the number of blocks for a number of tokens."""
        return -(-tokens // self.tokens_per_block)

    def cost(self, keys: Sequence[int], tokens: int) -> int:
        """Return the number of free blocks that :meth:`open` would use for the same arguments."""
        found = self._found(keys, tokens)
        return self.size(tokens) - sum(key in self._holders for key in found)

    def open(self, keys: Sequence[int], tokens: int) -> tuple[Allocation, int]:
        """Allocate for a sequence of `tokens`; also return the number of cached tokens."""
        found = self._found(keys, tokens)
        self.reused += len(found)
        self.missed += len(keys) - len(found)
        for key in found:
            self._reusable.pop(key, None)
            self._hold(key)
        allocation = Allocation(shared=list(found))
        self.grow(allocation, tokens)
        return allocation, len(found) * self.tokens_per_block

    def grow(self, allocation: Allocation, tokens: int) -> None:
        """Grow the allocation to `tokens`; it may take at most ``free`` blocks."""
        lacking = max(0, self.size(tokens) - len(allocation))
        if lacking > self.free:
            raise RuntimeError(f"{lacking} KV-cache blocks wanted, {self.free} free")
        empty = self.free - len(self._reusable)
        for key in list(self._reusable)[: max(0, lacking - empty)]:
            del self._reusable[key]
        self.alloc_total += lacking
        self.alloc_new += min(lacking, empty)
        self._private += lacking
        allocation.private += lacking

    def publish(self, allocation: Allocation, keys: Iterable[int]) -> None:
        """Publish the computed prompt blocks of a sequence for reuse."""
        for key in keys:
            if key not in self._holders and key not in self._reusable:
                self._hold(key)
                allocation.shared.append(key)
                allocation.private -= 1
                self._private -= 1

    def close(self, allocation: Allocation) -> None:
        """Release all blocks; shared ones stay reusable, the end of a prompt is evicted first."""
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

    def _found(self, keys: Sequence[int], tokens: int) -> Sequence[int]:
        """Return the cached leading blocks; the last token is always computed."""
        most = min(len(keys), (tokens - 1) // self.tokens_per_block)
        known = (
            n for n in range(most) if keys[n] not in self._holders and keys[n] not in self._reusable
        )
        return keys[: next(known, most)]
