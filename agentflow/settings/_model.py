import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from agentflow._typeguards import is_mapping
from agentflow.errors import ConfigurationError
from agentflow.settings._explain import explain_line
from agentflow.settings._renamed import RenamedKeys, aliases


def _empty_for_none(value: object) -> object:
    if not is_mapping(value):
        return value
    return {name: dict[str, object]() if section is None else section for name, section in value.items()}


SettingsByName: TypeAlias = Annotated[dict[str, dict[str, object]], BeforeValidator(_empty_for_none)]
"""Settings of several things, by their names; a name without settings (`rag:`) has none."""


class _Checked(RenamedKeys):
    """Checks given and assigned values like those from a file. A refused value leaves everything as it was."""

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        before, fields_set = dict(vars(self)), set(self.model_fields_set)
        try:
            super().__setattr__(aliases(type(self)).get(name, name), value)
        except ValidationError as error:
            # A check of several fields together fails after the field has been set.
            vars(self).update(before)
            self.__pydantic_fields_set__ = fields_set
            raise _refused(type(self), error) from None

    def given_keys(self) -> set[str]:
        """Return the names of the fields that were given, and of those whose default was changed in place.

        Example::

            config = SynthesisConfig(max_depth=3)
            config.planner_model.temperature = 0.2
            config.given_keys()  # {"max_depth", "planner_model"}
        """
        fields = type(self).model_fields.items()
        changed = {
            name
            for name, field in fields
            if getattr(self, name) != field.get_default(call_default_factory=True)
        }
        return changed | self.model_fields_set

    if not TYPE_CHECKING:  # a type checker would then accept any name

        def __init__(self, /, **values: object) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _refused(type(self), error) from None

        # Pydantic then doesn't call it for a section inside other settings, whose own line names the whole path.
        __init__.__pydantic_base_init__ = True

        def __getattr__(self, name: str) -> object:
            current_name = aliases(type(self)).get(name)
            return super().__getattr__(name) if current_name is None else getattr(self, current_name)


def _refused(model: type[BaseModel], error: ValidationError) -> ConfigurationError:
    return ConfigurationError(f"{model.__name__}: {explain_line(error, model)}")


class Section(_Checked):
    """Named part of some settings: strict about its keys; assigned values are checked. See docs/settings.md."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, use_attribute_docstrings=True, validate_default=True
    )


class Settings(_Checked, BaseSettings):
    """Settings of one program: strict about its keys; assigned values are checked. See docs/settings.md.

    Constructed directly, it reads neither files nor the environment; `load_settings` does.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        validate_assignment=True,
        use_attribute_docstrings=True,
        env_prefix="AGENTFLOW_",
        env_nested_delimiter="__",
        dotenv_filtering="only_existing",
    )

    @classmethod
    def values_of_file(
        cls, values: dict[str, object], file: str, above: Mapping[str, object]
    ) -> dict[str, object]:
        """Return the values of a settings file; a program that reads other formats converts them here. See docs/settings.md.

        :param above: values of sources that override the file.
        """
        del file, above
        return values

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the passed values alone: `load_settings` chooses the other sources and their order."""
        return (init_settings,)


def _check_url(url: str) -> str:
    if url and not re.fullmatch(r"(https?|postgresql)://\S+", url):
        raise ValueError("no URL with a scheme; write it as http://127.0.0.1:8000/v1")
    return url


EndpointUrl = Annotated[str, AfterValidator(_check_url)]
"""URL of an endpoint with `http://` or `https://`, or of a database with model replicas, or an empty string."""
