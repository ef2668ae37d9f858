"""The segment store worker: opens containers, supervises them, serves them."""
