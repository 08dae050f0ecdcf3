"""Tests of campaigns: what is written down, merged, replayed, and survives whoever is killed."""
