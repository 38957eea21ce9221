"""Suite `robust`: contexts that the environment draws."""
