"""A live view of sidecars in a terminal.

``rows`` turns two scrapes of a sidecar into the rows of a table, ``filters`` sorts and filters
them, ``frame`` renders them, ``scraper`` reads the sidecars and ``terminal`` reads keys and draws.
"""
