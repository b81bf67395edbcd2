"""The process and its host: memory, priorities, threads, watched files."""
