"""What can be wrong with a set-up: one file looks at one thing, and says so in lines."""
