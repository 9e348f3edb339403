"""The capture tap: packets in, TCP byte streams out to protocol observers."""
