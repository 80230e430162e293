"""holdfast.django: a site of its own that Django's test runner runs, the shop of examples/, and Django's own tests."""
