"""Streams of tokens at a given pace: a server that sends them and clients that time them."""
