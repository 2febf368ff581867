"""What is done ahead of calls: builds, rehearsals and compilations in other processes."""
