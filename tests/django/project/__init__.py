"""A Django project for the tests: its settings, an app, and cases that Django's test runner runs (test_project.py)."""
