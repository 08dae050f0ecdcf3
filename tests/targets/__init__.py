"""The vocabulary, the models, the built-in decoder, and the one suite that every Target passes."""
