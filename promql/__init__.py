"""PromQL and the Prometheus API, independent of SLOs.

``tree`` holds expressions and prints them, ``expr`` builds them, ``parse`` reads them.  ``types``
checks functions and types; ``query`` checks queries from users.  ``lint`` finds defects in
dashboards and rule files.  ``client`` queries the HTTP API, ``http_client`` makes bounded HTTP
requests, ``histogram`` reads quantiles from buckets.
"""
