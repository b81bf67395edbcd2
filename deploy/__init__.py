"""How Dragoman is deployed, and the programs that try it."""
