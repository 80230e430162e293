"""Real servers for the tests, started from wheels on private sockets."""
