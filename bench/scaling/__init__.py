"""How far one store carries: constants measured here, a simulation that uses them, and the page that shows both.

Used by bench/scale and by the tests of the pure parts. Nothing in here is part of the package that users install.
"""
