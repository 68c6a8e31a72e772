"""Results as terminal text (80 columns and wider) and as JSON. Decides nothing."""
