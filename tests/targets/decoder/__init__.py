"""The built-in decoder, driven by hand one step at a time."""
