"""``python tests/e2e/cluster COMMAND``: a real single-node Kubernetes for tests; see docs/testing-on-kubernetes.md."""

import sys

from localcluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
