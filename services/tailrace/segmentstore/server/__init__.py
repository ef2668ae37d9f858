"""The server of the segment store protocol: connections, appends, requests, replies (design §3, wire)."""
