"""Languages by their BCP-47 codes."""

UNDETERMINED = "und"
"""What stands among a model's languages where its files do not tell which these are."""
