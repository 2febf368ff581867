"""The host: files and folders, who may write them, processes, locks, forks, and code of strangers."""
