"""Tests of the judge: each check with what it must let pass and what it must not, on traces written by hand."""
