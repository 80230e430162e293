"""The worker engine: keeper (claims, renews, settles) and runner (one attempt as a straight pipeline)."""
