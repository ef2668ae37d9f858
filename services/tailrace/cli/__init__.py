"""The tailrace command."""

import os

# gRPC reads it when it is imported. Its remarks on failed handshakes are no output of a command.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
