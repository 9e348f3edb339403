"""Controlled load tests of LLM servers: matched work, open and closed loops, rate search, reports.

Definitions of all latencies are those of :mod:`slos.signals`, measured at the client.  No prompt
and no response is stored.
"""
