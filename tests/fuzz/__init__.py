"""Tests of the fuzzer: strategies, conductor, shrinker, search, repros and the command line."""
