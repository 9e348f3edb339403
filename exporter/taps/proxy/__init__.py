"""The proxy tap: forwards bytes unchanged and feeds them to protocol observers."""
