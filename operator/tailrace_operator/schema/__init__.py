"""The source of the resources' definitions (design §11). ``scripts/make_crds.py`` writes them to files."""
