"""Tests; the checkout's root is on ``sys.path``, so ``import tests.oracles.network`` works everywhere."""
