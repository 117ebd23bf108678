"""The scoreboard: what detectors see of the experiments of a campaign, and what recovery makes of them."""
