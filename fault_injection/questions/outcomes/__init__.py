"""Campaigns that ask what came of each injection: many of one plan, a few steps each."""
