"""What each controller call does, without a transport."""
