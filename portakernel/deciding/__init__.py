"""Which kernel serves a request: policies, readiness, builds, and the order of those that can."""
