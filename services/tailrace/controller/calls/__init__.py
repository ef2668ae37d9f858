"""Answer each controller call, without a transport."""
