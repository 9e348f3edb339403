"""The content of a web configuration file."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exporter.web_config.server_tls import ServerTls


@dataclass(frozen=True, slots=True)
class RequestRate:
    """At most ``burst`` requests at once, and one per ``interval`` seconds after them."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The content of the file; ``users`` maps names to bcrypt hashes."""

    tls: ServerTls | None = None
    context: ssl.SSLContext | None = field(default=None, compare=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    rate_limit: RequestRate | None = None

    @property
    def authenticates(self) -> bool:
        """Whether every client needs a password or a certificate."""
        return bool(self.users) or (self.tls is not None and self.tls.requires_certificate)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the configuration names."""
        return self.tls.files if self.tls else ()
