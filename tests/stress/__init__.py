"""Tests of `stress`. Imports it and what it imports; every server that a test starts ends by itself."""
