"""Do what streams need from time to time, without a call."""
