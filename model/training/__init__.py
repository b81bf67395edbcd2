"""From a file of sentence pairs to a native checkpoint."""
