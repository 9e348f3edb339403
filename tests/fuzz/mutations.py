"""Mutations of the entries of a corpus, as a hypothesis strategy."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

MAX_BYTES = 32 * 1024
_WORDS = (
    *(b"", b"\0", b"\r\n", b"\n\n", b"\r", b" ", b"\t", b":", b"=", b",", b'"', b"'", b"\\", b"#"),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b"(",
        b")",
        b"<<",
        b"&a",
        b"*a",
        b"!!python/object:os.system",
        b"---",
    ),
    *(b"-1", b"0", b"1e309", b"NaN", b"+Inf", b"9" * 40, b"0x10", b"true", b"null", b"\xff\xfe"),
    *(
        b"\xc0\x80",
        b"\xed\xa0\x80",
        "\u2028".encode(),
        b"\x1b[31m",
        b"A" * 300,
        b"../../etc/passwd",
    ),
    *(b"HTTP/1.1", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"data: ", b"[DONE]"),
)


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Return a seed after some deletions, insertions, replacements, repetitions and splices."""
    data = bytearray(draw(st.sampled_from(seeds))[:MAX_BYTES])
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        match draw(st.integers(0, 5)):
            case 0:
                del data[start:end]
            case 1:
                data[start:end] = draw(st.binary(max_size=16))
            case 2:
                data[start:start] = draw(st.sampled_from(_WORDS))
            case 3:
                data[start:start] = data[start:end] * draw(st.integers(1, 60))
            case 4:
                data[start:] = draw(st.sampled_from(seeds))[start:]
            case _ if start < len(data):
                data[start] ^= 1 << draw(st.integers(0, 7))
    return bytes(data[:MAX_BYTES])
