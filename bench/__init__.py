"""Benchmarks: medians of one run, as ratios to a floor measured in the same run. Nothing here asserts."""
