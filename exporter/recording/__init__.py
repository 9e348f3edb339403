"""Record protocol events as metrics: streams, tokens and goodput by model, without I/O."""
