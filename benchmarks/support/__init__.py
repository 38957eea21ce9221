"""Which models of BoTorch are supported, found by running each: ``python -m benchmarks support``."""
