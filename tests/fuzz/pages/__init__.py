"""Tests of pages: what they show, that they need nothing else, and how they look in a browser."""
