"""Incident runbooks from SLO plans: content as data, rendered to Markdown."""

from runbooks.local_notes import FOLDER as LOCAL_FOLDER
from runbooks.local_notes import with_notes
from runbooks.service import HEADER, files, folder
from runbooks.site import site_files

__all__ = ["HEADER", "LOCAL_FOLDER", "files", "folder", "site_files", "with_notes"]
