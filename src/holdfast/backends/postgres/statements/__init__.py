"""The statements and server-side functions, one file per verb."""
