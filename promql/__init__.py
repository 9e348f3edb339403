"""The ground floor: all that is known of PromQL and of Prometheus.

``expr`` builds and renders expressions.  ``parse`` reads them, with the place of each part;
``types`` checks functions and types; ``query`` is both for queries that people bring along.
``lint`` looks for defects in dashboards and rule files.  ``client`` asks the HTTP API.
"""
