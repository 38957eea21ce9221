"""Suite `delay`: values that arrive late."""
