"""Settings. The variables PROJECT_SQLITE (a folder) or PROJECT_POSTGRES (a socket's folder) name the database."""

from __future__ import annotations

import os
from typing import Any

import django

SECRET_KEY = "for tests only"  # noqa: S105
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "holdfast.django",
    "tests.django.project.shop",
]
DATABASES: dict[str, dict[str, Any]] = {}
if "PROJECT_POSTGRES" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": os.environ["PROJECT_POSTGRES"],
        "PORT": os.environ.get("PROJECT_PORT", ""),
        "CONN_MAX_AGE": 600,
        "TEST": {"NAME": f"test_project_{os.getpid()}"},
    }
else:
    folder = os.environ["PROJECT_SQLITE"]
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{folder}/project.db",
        "TEST": {"NAME": f"{folder}/test-project.db"},  # a file: jobs cannot live in Django's memory
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 60},
    }
HOLDFAST = {"DATABASE": "default", "DASHBOARD_URL": "https://jobs.example.com/"}
if django.VERSION >= (6, 0):
    TASKS = {
        "default": {"BACKEND": "holdfast.django.TasksBackend", "QUEUES": ["default", "reports"]},
        "once": {"BACKEND": "holdfast.django.TasksBackend", "OPTIONS": {"retry": 0}},
        "brief": {"BACKEND": "holdfast.django.TasksBackend", "OPTIONS": {"retry": 0, "timeout": 0.05}},
    }
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.django.project.urls"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
