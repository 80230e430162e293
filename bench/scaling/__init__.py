"""How much load one store can carry: measured constants, a simulation that uses them, and the page that shows both.

Used by bench/scale and by the tests of the pure parts. Nothing here is part of the package that users install.
"""
