"""Campaigns: many injections of one plan, a few steps each."""
