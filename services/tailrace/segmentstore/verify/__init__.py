"""``tailrace inspect verify``: proves that a data folder holds what its logs say, and changes nothing.

The server's own recovery rebuilds the state; then the verification reads every byte that the state names.
"""
