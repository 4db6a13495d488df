"""The software branch record: bursts of block stepping, fed into the model of the ring."""
