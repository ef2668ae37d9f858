"""The segment store's binary protocol, sans I/O: commands, codec and append-block reassembly."""
