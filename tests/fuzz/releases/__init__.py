"""Tests of `fuzz.releases`: failures in several versions of an engine, here of one of a few lines in wheels of its own."""
