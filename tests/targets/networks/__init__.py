"""Tests of the networks with an encoder."""
