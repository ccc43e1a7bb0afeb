"""Random input for everything that reads what others wrote: properties that pytest holds with a fixed
budget, and `scripts/fuzz` for as long as one likes."""
