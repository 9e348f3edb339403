"""The table of limits on files and responses that the commands read."""

from __future__ import annotations

from admission import capacity
from exporter.web_config.basic_auth import MAX_PENDING
from exporter.web_config.reader import MAX_COST, MAX_USERS
from promql import client, http_client, parse, token_reader
from promql.lint import located_text
from slos import document, http_client_config, jsonnet
from tokenslo import scraped

_MIB = 1 << 20


def rows() -> list[tuple[str, str, str]]:
    """Return input, limit, and what happens beyond it."""
    problem = "one error with file and line, exit code 2"
    return [
        (
            "a file of `--slo`, `--config`, `--web-config` or `--http-config`: size; values, "
            "aliases counted; depth",
            f"{document.MAX_BYTES // _MIB} MiB; {document.MAX_NODES:,}; {document.MAX_DEPTH}",
            problem,
        ),
        (
            "a Jsonnet program: time; memory; output; stack",
            f"{jsonnet.SECONDS:g} s; {jsonnet._MEMORY // _MIB} MiB; "
            f"{jsonnet.MAX_BYTES // _MIB} MiB; {jsonnet._MAX_STACK} frames",
            problem,
        ),
        ("a load report of `--capacity`", f"{capacity.MAX_BYTES // _MIB} MiB", problem),
        (
            "a linted file: size; values; depth",
            f"{located_text.MAX_BYTES // _MIB} MiB; {located_text.MAX_NODES:,}; "
            f"{located_text.MAX_DEPTH}",
            "the file is reported as unreadable",
        ),
        (
            "a PromQL expression: length; parts",
            f"{parse.MAX_LENGTH >> 10} KiB; {token_reader.MAX_PARTS}",
            "it is not checked, and the report has a note",
        ),
        (
            "a response of Prometheus: size; redirects",
            f"{client._MAX_BYTES // _MIB} MiB; {http_client.MAX_REDIRECTS}",
            "smaller queries where those suffice, else an error",
        ),
        ("an exposition from a URL of `--metrics`", f"{scraped._MAX_BYTES // _MIB} MiB", problem),
        (
            "a file with a password or token",
            f"{http_client_config.MAX_SECRET >> 10} KiB, one line",
            "the request fails, and the message names the file",
        ),
        (
            "users of a web configuration file; cost of a hash",
            f"{MAX_USERS}; {MAX_COST}",
            problem,
        ),
        (
            "passwords that wait for a check",
            f"{MAX_PENDING}; one that was correct once does not wait",
            "503 with `Retry-After`",
        ),
    ]
