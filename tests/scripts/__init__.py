"""Scripts that tests start as processes of their own, and what those run."""
