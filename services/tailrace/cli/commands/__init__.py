"""The commands. They import what they need when they run: a command line answers fast."""
