#!/usr/bin/env python
"""Django's command line for the shop. `python manage.py holdfast work` runs a worker."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
