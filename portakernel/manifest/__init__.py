"""The YAML that plugins and backends declare themselves with: its form, and reading it."""
