"""Questions that take many runs to answer: capacity under an objective, tuning, sensitivity."""
