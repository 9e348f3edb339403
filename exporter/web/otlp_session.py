"""The HTTP session of OTLP pushes: no redirects, and no response body is read."""

from __future__ import annotations

from typing import Any

import requests

from promql.http_client import REDIRECTS


class OtlpSession(requests.Session):
    """Fail on redirects, and read only the head of a response.

    OpenTelemetry's exporter treats every status below 400 as success, and reads the whole
    body, which may be endless.
    """

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request; raises TooManyRedirects."""
        response = super().request(*args, **{**kwargs, "allow_redirects": False, "stream": True})
        response.close()
        if response.status_code in REDIRECTS:
            raise requests.TooManyRedirects(
                f"redirects are not followed, and the receiver responded {response.status_code}; "
                "give its final address"
            )
        return response
