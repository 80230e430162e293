"""A store made of many complete stores: queues are split into shards; a router implements the contract over them."""
