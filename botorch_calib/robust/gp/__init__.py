"""Functions of a decision and a context, in closed form for Gaussian processes."""
