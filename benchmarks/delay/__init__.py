"""Suites `delay`, `delay_settings` and `delay_workers`: values that arrive late."""
