"""Settings that conflict or depend on others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from exporter.settings.listeners import LISTENERS, is_loopback
from exporter.settings.options import BY_NAME, SOURCES, Option
from exporter.settings.values import Settings, one_of, parse_url
from exporter.taps.tap import ProxySpec
from slos.errors import InvalidFile, Problem

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class GivenSetting:
    """The values of a setting, and their source: file, flag or variable."""

    option: Option
    texts: tuple[str, ...]
    file: str
    field: str
    line: int = 0

    def problem(self, message: str, fix: str) -> Problem:
        """Return an error at this place."""
        return Problem(self.file, self.line, self.field, message, fix)


def conflicts(config: Settings, given: Mapping[str, GivenSetting]) -> Iterator[Problem]:
    """Yield problems of settings that exclude each other or require another one."""
    if not any(getattr(config, BY_NAME[name].attribute) for name in SOURCES):
        flags = one_of(f"--{name} {BY_NAME[name].metavar}" for name in SOURCES)
        yield Problem(
            COMMAND_LINE,
            0,
            "",
            "no source is configured",
            f"give {flags} (or as {BY_NAME[SOURCES[0]].variable} and {SOURCES[0]} in --config "
            "FILE, for example)",
        )
    if config.trtllm_requests and not config.trtllm:
        yield given["trtllm_requests"].problem(
            "the files do not name their model", "give --trtllm URL as well"
        )
    if config.otlp_traces_forward and not config.otlp_traces:
        yield given["otlp_traces_forward"].problem(
            "there are no traces to forward", "give --otlp-traces HOST:PORT as well"
        )
    if config.probe and not (config.triton or config.trtllm or config.vllm or config.sglang):
        yield given["probe"].problem(
            "there is no server to probe",
            "give --triton URL, --trtllm URL, --vllm URL or --sglang URL as well",
        )
    if config.probe and not config.tap:
        yield given["probe"].problem(
            "the server's counters would include probes",
            "give --tap SPEC as well: a tap excludes probes",
        )
    yield from _credentials(given)
    yield from _tap_conflicts(config, given)
    yield from _unauthenticated(config, given)
    if config.stale_after <= config.interval:
        where = given["stale_after"]
        if where.file == "defaults":
            where = given["interval"]
        yield where.problem(
            f"series would be stale ({config.stale_after:g} s) before the next scrape "
            f"({config.interval:g} s)",
            "make stale-after longer than interval",
        )


def _credentials(given: Mapping[str, GivenSetting]) -> Iterator[Problem]:
    """Yield problems of URLs with a password on the command line, which process lists show."""
    for setting in given.values():
        is_url = setting.option.parse is parse_url
        if is_url and setting.file == COMMAND_LINE and "@" in urlsplit(setting.texts[-1]).netloc:
            yield setting.problem(
                "holds credentials, which process lists show",
                f"set it in --config FILE or as {setting.option.variable}, or use --http-config "
                "FILE",
            )


def _unauthenticated(config: Settings, given: Mapping[str, GivenSetting]) -> Iterator[Problem]:
    """Yield problems of the web configuration, and of listeners that serve every client."""
    authenticates = False
    if config.web_config:
        from exporter.web_config.reader import read_web_config

        try:
            authenticates = read_web_config(config.web_config).authenticates
        except InvalidFile as invalid:
            yield from invalid.problems
            return
    if authenticates or config.allow_unauthenticated:
        return
    for name in LISTENERS:
        listen = getattr(config, name)
        if listen and not is_loopback(listen.host):
            yield given[name].problem(
                f"{listen} would serve clients of other machines without authentication",
                "give --web-config FILE with basic_auth_users or required client certificates; or "
                "give --allow-unauthenticated if a firewall or a NetworkPolicy limits the clients",
            )


_WITH_TAPS = {
    "tap_tenant_header": ("tap", "there are no streams to observe", "give --tap SPEC as well"),
    "tap_tls_certificate": ("tap_tls_key", "its key is missing", "give --tap-tls-key FILE as well"),
    "tap_tls_key": (
        "tap_tls_certificate",
        "its certificate is missing",
        "give --tap-tls-certificate FILE as well",
    ),
    "tap_upstream_ca": (
        "tap_upstream_server_name",
        "the proxy does not use TLS with the server",
        "give --tap-upstream-server-name NAME as well",
    ),
}
"""The setting that each of these requires, the error without it, and the fix."""
_WITH_PROXY = {
    "tap_tls_certificate": "only a proxy terminates TLS",
    "tap_upstream_server_name": "only a proxy connects to the server",
    "tap_inject": "only a proxy can change requests",
}


def _tap_conflicts(config: Settings, given: Mapping[str, GivenSetting]) -> Iterator[Problem]:
    for name, (needed, message, fix) in _WITH_TAPS.items():
        if getattr(config, name) and not getattr(config, needed):
            yield given[name].problem(message, fix)
    proxies = [spec for spec in config.tap if isinstance(spec, ProxySpec)]
    if proxies and len(proxies) < len(config.tap):
        yield given["tap"].problem(
            "a proxy and a capture would count the same streams twice",
            "choose either the proxy or the capture",
        )
    for name, message in _WITH_PROXY.items():
        if getattr(config, name) and not proxies:
            yield given[name].problem(message, "give --tap proxy=LISTEN=UPSTREAM as well")
