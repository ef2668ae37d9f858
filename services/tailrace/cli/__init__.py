"""The tailrace command."""

import os

# gRPC reads it at import. Its warnings about failed handshakes must not appear in a command's output.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
