"""The KV cache's block counts, against naive ones that list every sequence's blocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.kvcache import Allocation, BlockPool

TOKENS_PER_BLOCK = 4


def open_in(pool: BlockPool, prompt: tuple[Any, ...]) -> tuple[Allocation, int]:
    return pool.open(pool.keys(prompt), len(prompt))


# Sequences with prompts of few letters, so that prefixes are shared: prompt, growth, steps.
sequences = st.lists(
    st.tuples(
        st.text("ab", min_size=1, max_size=20).map(tuple),
        st.integers(0, 12),
        st.permutations(["publish", "grow", "close"]).filter(
            lambda order: order.index("publish") < order.index("close")
        ),
    ),
    min_size=1,
    max_size=12,
)


@given(sequences, st.randoms(use_true_random=False))
def test_blocks_are_conserved(plans: list[Any], pick: Any) -> None:
    pool = BlockPool(1000, TOKENS_PER_BLOCK)
    open_sequences: dict[int, tuple[Allocation, tuple[str, ...], list[str], int]] = {}
    waiting = list(enumerate(plans))
    while waiting or open_sequences:
        if waiting and (not open_sequences or pick.random() < 0.5):
            number, (prompt, more, order) = waiting.pop()
            allocation, reused = open_in(pool, prompt)
            assert reused % TOKENS_PER_BLOCK == 0
            assert reused < len(prompt)
            open_sequences[number] = (allocation, prompt, list(order), more)
        else:
            number = pick.choice(sorted(open_sequences))
            allocation, prompt, order, more = open_sequences[number]
            match order.pop(0):
                case "publish":
                    pool.publish(allocation, pool.keys(prompt))
                case "grow":
                    pool.grow(allocation, len(prompt) + more)
                case "close":
                    pool.close(allocation)
                    del open_sequences[number]
        shared = Counter(
            key for allocation, *_ in open_sequences.values() for key in allocation.shared
        )
        private = sum(allocation.private for allocation, *_ in open_sequences.values())
        assert pool.used == len(shared) + private
        assert pool.used + pool.free == pool.blocks
        for allocation, prompt, order, more in open_sequences.values():
            tokens = len(prompt) + (0 if "grow" in order else more)
            assert len(allocation) == -(-tokens // TOKENS_PER_BLOCK)
    assert pool.used == 0
    assert pool.alloc_new <= pool.alloc_total
    assert pool.alloc_new <= pool.blocks


def test_a_computed_prompt_is_reused_except_for_its_last_token() -> None:
    pool = BlockPool(10, TOKENS_PER_BLOCK)
    first, reused = open_in(pool, tuple("abcdefgh"))
    assert reused == 0
    pool.publish(first, pool.keys("abcdefgh"))
    assert open_in(pool, tuple("abcdefghi"))[1] == 8
    assert open_in(pool, tuple("abcdefgh"))[1] == 4
    assert open_in(pool, tuple("abcdXfgh"))[1] == 4
    assert open_in(pool, tuple("Xbcdefgh"))[1] == 0
    assert (pool.reused, pool.missed) == (4, 2 + 0 + 1 + 1 + 2)


def test_blocks_that_are_not_computed_are_not_reused() -> None:
    pool = BlockPool(10, TOKENS_PER_BLOCK)
    open_in(pool, tuple("abcdefgh"))
    assert open_in(pool, tuple("abcdefgh"))[1] == 0


def test_a_shared_prefix_costs_no_block_while_a_sequence_holds_it() -> None:
    pool = BlockPool(10, TOKENS_PER_BLOCK)
    keys = pool.keys("abcdefghi")
    first, _ = pool.open(keys, 9)
    pool.publish(first, keys)
    assert pool.cost(keys, 9) == 1
    pool.close(first)
    assert pool.cost(keys, 9) == 3


def test_reusable_blocks_count_as_free_and_are_evicted_tail_first() -> None:
    pool = BlockPool(4, TOKENS_PER_BLOCK)
    allocation, _ = open_in(pool, tuple("abcdefgh"))
    pool.publish(allocation, pool.keys("abcdefgh"))
    pool.close(allocation)
    assert pool.free == 4
    other, _ = open_in(pool, tuple("012345678"))  # two empty blocks and the end of the prompt
    assert (pool.alloc_total, pool.alloc_new) == (5, 4)
    pool.close(other)
    assert open_in(pool, tuple("abcdefgh"))[1] == 4


def test_more_blocks_than_free_are_an_error() -> None:
    pool = BlockPool(2, TOKENS_PER_BLOCK)
    with pytest.raises(RuntimeError, match="3 KV-cache blocks needed, 2 free"):
        open_in(pool, tuple("012345678"))
