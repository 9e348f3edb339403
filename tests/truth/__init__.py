"""Clients that measure their own requests, as ground truth for the taps.

They share no code with the taps and follow docs/reference/signals.md.  The result of each request
is a :class:`tests.truth.client_record.ClientRecord`.

A client disconnects mid-stream right after a token, when its socket is empty.  A token in flight at
that moment would be sent and never counted.  Engine steps therefore take 20 ms or more, and a
client whose last token is older waits for the next one.
"""
