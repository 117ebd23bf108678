"""How a fault spreads: the map of one injection, and of a campaign: its sentences, its picture and its page."""
