"""Sans-I/O observers of HTTP, gRPC and the APIs of model servers: bytes in, events out."""
