"""What is claimed, compiled and proven, for every op and target, as data."""
