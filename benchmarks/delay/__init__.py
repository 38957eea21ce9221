"""Suites `delay` and `delay_settings`: values that arrive late."""
