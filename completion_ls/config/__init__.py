"""Settings: what they are (`settings`), where they come from (`sources`), where files lie (`paths`)."""
