"""What goes before everything else in a script: the short way of calls that ask for nothing unusual."""
