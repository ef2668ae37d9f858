"""The program of a Pipeline's driver (docs/pipelines.md), in a folder that Python searches for modules, too."""
