"""Each planted fault is found by a rightful check and shrinks to the smallest schedule known; its honest twin passes."""
