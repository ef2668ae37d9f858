"""The commands. They import their modules when they run, so that the command line starts fast."""
