"""The entry of INSTALLED_APPS: imports `tasks` of all installed apps, and sets the store up on `migrate`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import Error, register
from django.core.signals import setting_changed
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules


class HoldfastConfig(AppConfig):
    """`holdfast.django` in INSTALLED_APPS."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "Holdfast"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from .application import on_setting_changed, set_up_store, the_app

        app = the_app()
        post_migrate.connect(set_up_store, sender=self)
        setting_changed.connect(on_setting_changed)
        register(check_settings, "holdfast")
        if app.configuration.tasks_module is not None:
            autodiscover_modules(app.configuration.tasks_module)


def check_settings(app_configs: Any, **kwargs: Any) -> list[Any]:
    """`manage.py check`: a mistake in the setting HOLDFAST."""
    from ..errors import ConfigurationError
    from . import conf

    try:
        conf.read()
    except ConfigurationError as error:
        return [Error(str(error), id="holdfast.E001")]
    return []
