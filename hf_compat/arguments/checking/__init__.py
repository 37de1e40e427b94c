"""From the values a user gave to the values a run takes, with all that is wrong with them in one error."""
