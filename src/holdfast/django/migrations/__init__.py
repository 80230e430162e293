"""Migrations that create no table: they only let Django make the permissions of the admin pages."""
