"""What is said on a connection between a client and a model server, seen without any I/O."""
