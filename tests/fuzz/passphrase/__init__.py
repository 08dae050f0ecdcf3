"""The pass-phrase experiment, on models that are random and targets that leak."""
