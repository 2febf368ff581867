"""The first-party plugins, one package each."""
