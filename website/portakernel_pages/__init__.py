"""What writes the pages and files that are committed, in no wheel: `generate`, and the pages of sharding and modes."""
