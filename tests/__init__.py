"""Tests; the checkout's root is on ``sys.path``, so ``import tests.oracle`` works everywhere."""
