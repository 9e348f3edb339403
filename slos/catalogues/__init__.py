"""What each release of each server emits, for linting dashboards and rules against.

``tokenslo lint --catalogue NAME`` picks from :data:`NAMES`; see :func:`named`.
"""
