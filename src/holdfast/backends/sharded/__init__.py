"""A store made of many complete stores: queues are split into shards, and a router fulfils the contract over them."""
