"""Rebuild the metric catalogues in ``slos/catalogues/data`` from checkouts of the servers.

``python -m tools.catalogues vllm CHECKOUT`` reads the declarations of the metrics without running
any of the server's code, and writes names, types, labels and buckets with the release and commit
they are from.  What a declaration does not say (renames, units, which values a label has) stays in
``slos/catalogues/*.py``.
"""
