"""The setting HOLDFAST: what it takes, and what it says to a mistake."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

from django.apps import apps
from django.core import checks
from django.test import SimpleTestCase, override_settings

from holdfast import ConfigurationError
from holdfast.backends import parse_url
from holdfast.django import app, conf
from holdfast.django.apps import check_settings

POSTGRES = "django.db.backends.postgresql"


class Settings(SimpleTestCase):
    """Reading the setting opens nothing."""

    def test_a_mistake_is_named(self) -> None:
        for given, said in (
            ({"URl": "memory://"}, "no key 'URl'. Did you mean URL?"),
            ({"QUEUES": []}, "Keys: URL, DATABASE, IMPORTS"),
            ([], "must be a dict"),
            ({"URL": 5}, "URL=5. Give a text"),
            ({"DATABASE": "other"}, "names the database 'other'. DATABASES has: default."),
        ):
            with self.subTest(given), mock.patch("django.conf.settings.HOLDFAST", given):
                with self.assertRaisesMessage(ConfigurationError, said):
                    conf.read()
                [problem] = check_settings(None)
                self.assertIn(said, problem.msg)
        self.assertEqual(check_settings(None), [])
        self.assertEqual(checks.run_checks(tags=["holdfast"]), [])

    def test_the_app_follows_the_setting(self) -> None:
        before = app.url
        with override_settings(HOLDFAST={"URL": "memory://"}):
            self.assertEqual(app.url, "memory://")
        with mock.patch.dict(os.environ, {"HOLDFAST_URL": "redis://cache/2"}), override_settings(HOLDFAST={}):
            self.assertEqual(app.url, "redis://cache/2")
        self.assertEqual(app.url, before)

    def test_the_url_of_a_database(self) -> None:
        for given, url in (
            ({"ENGINE": POSTGRES, "NAME": "shop"}, "postgresql:///shop"),
            (
                {"ENGINE": POSTGRES, "NAME": "a b", "USER": "ann", "PASSWORD": "p@/?", "HOST": "db", "PORT": 5433},
                "postgresql://ann:p%40%2F%3F@db:5433/a%20b",
            ),
            (
                {"ENGINE": "some.postgresql", "NAME": "shop", "HOST": "/run/pg",
                 "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 3}},
                "postgresql:///shop?sslmode=require&host=%2Frun%2Fpg",
            ),
            ({"ENGINE": "django.db.backends.sqlite3", "NAME": "/srv/a b.db"}, "sqlite:////srv/a%20b.db?share=true"),
            ({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, "memory://"),
            ({"ENGINE": "django.db.backends.sqlite3", "NAME": "file:x?mode=memory"}, "memory://"),
        ):  # fmt: skip
            with self.subTest(given), mock.patch("django.conf.settings.DATABASES", {"default": given}):
                self.assertEqual(conf.database_url("default"), url)
                self.assertEqual(parse_url(url).url, url)
        mysql = mock.patch("django.conf.settings.DATABASES", {"default": {"ENGINE": "django.db.backends.mysql"}})
        with mysql, self.assertRaisesMessage(ConfigurationError, "works with PostgreSQL and SQLite"):
            conf.database_url("default")

    def test_tasks_of_installed_apps_are_found(self) -> None:
        self.assertIn("tests.django.project.shop.tasks.pay", app.tasks)
        self.assertEqual(apps.get_app_config("holdfast").name, "holdfast.django")

    def test_another_name_is_an_attribute_error(self) -> None:
        import holdfast.django

        with self.assertRaises(AttributeError):
            _: Any = holdfast.django.apple
