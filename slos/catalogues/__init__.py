"""Metric catalogues of servers by release, for the linter.

``tokenslo lint --catalogue NAME`` picks from :data:`NAMES`; see :func:`named`.
"""
