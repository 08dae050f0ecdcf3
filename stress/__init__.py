"""Load tests: the top floor. May import `targets`, `oracle` and `fuzz`; nothing imports it."""
