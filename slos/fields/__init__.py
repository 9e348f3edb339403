"""Tables of the keys of SLO files, with a reader for each key."""
