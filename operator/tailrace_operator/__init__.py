"""The Kubernetes operator: reconcile StreamClusters, Streams and ReaderGroups.

See docs/design.md#resources, docs/adr/0013.
"""
