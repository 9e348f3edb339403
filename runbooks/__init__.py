"""Incident runbooks from SLO plans: content as data, rendered to Markdown."""

from runbooks.service import HEADER, files, folder

__all__ = ["HEADER", "files", "folder"]
