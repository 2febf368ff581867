"""Text: what is shown to people, safe for terminals and logs, and values spelled out whole."""
