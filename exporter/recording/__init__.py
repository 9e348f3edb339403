"""From protocol events to metrics: streams, tokens, goodput and verdicts by model; no I/O."""
