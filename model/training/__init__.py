"""Training of a native checkpoint on a file of sentence pairs."""
