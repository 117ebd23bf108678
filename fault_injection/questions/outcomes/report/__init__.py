"""The report of a campaign."""
