"""Clients that know what they saw: the truth that taps are held against.

They share no code with what reads the wire for tokenslo, and are told the rules in the words of
docs/reference/signals.md.  Each request is one :class:`tests.truth.seen.Seen`.

A client that leaves in the middle does so right after a token, when nothing more waits for it.  A
token that is on its way just then would be sent and never seen, so the engines' steps are 20 ms and
more, and whoever finds that the last token has been waiting for long waits for the next one.
"""
