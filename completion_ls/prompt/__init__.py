"""From the text around the cursor to the model's prompt."""
