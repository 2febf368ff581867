"""The commands of authors: ``new``, ``validate``, ``check``, ``lint``, ``compile``, ``bench``."""
