"""Which models of BoTorch are supported: ``python -m benchmarks support`` runs each."""
