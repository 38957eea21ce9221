"""Speed of the package, as ratios to BoTorch."""
