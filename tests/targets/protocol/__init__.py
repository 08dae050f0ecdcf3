"""What was asked, what happened, and the sentences in which bad input is refused."""
