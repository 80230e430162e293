"""The worker engine: keeper (claims, renews, settles) and runners (one attempt as a straight pipeline)."""
