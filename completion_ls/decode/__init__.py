"""Pure functions of decoding: how tokens are chosen from logits."""
