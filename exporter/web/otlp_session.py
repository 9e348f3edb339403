"""The HTTP session of OTLP pushes: no redirects, and no answer is read."""

from __future__ import annotations

from typing import Any

import requests

from exporter.sources.fetch import REDIRECTS


class OtlpSession(requests.Session):
    """Fails for a redirect, and reads the head of an answer only.

    OpenTelemetry's exporter takes every status below 400 for a delivery, and reads the whole body,
    which may be endless.
    """

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request; raises TooManyRedirects."""
        response = super().request(*args, **{**kwargs, "allow_redirects": False, "stream": True})
        response.close()
        if response.status_code in REDIRECTS:
            raise requests.TooManyRedirects(
                f"redirects are not followed, and the receiver answered {response.status_code}; "
                "give its final address"
            )
        return response
