"""The measurements of ``tailrace bench`` (docs/performance.md#how-the-benchmarks-measure)."""
