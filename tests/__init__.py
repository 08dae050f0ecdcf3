"""Tests mirror the four packages; `quality` says of every planted fault that it is found, and shrinks to what."""
