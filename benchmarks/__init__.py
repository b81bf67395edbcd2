"""Every figure that the project states, as a command that prints it."""
