"""Streams of tokens at a fixed rate: the server that sends them, the clients that time them."""
