"""The settings that accelerate's ``Accelerator`` shows as objects: of loaders and of a project's folders."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, overload

from hf_compat.accelerator.refused import FixedSetting
from hf_compat.arguments.accelerator_config import AcceleratorConfig

__all__ = ["LoaderSettings", "ProjectSettings", "SettingsObject"]

Kind = TypeVar("Kind")


@dataclass
class LoaderSettings:
    """Settings of prepared loaders, by the names of accelerate's ``DataLoaderConfiguration``."""

    split_batches: bool = False
    """Whether one batch is split over the ranks."""
    dispatch_batches: bool | None = None
    """Whether rank 0 reads the data for all ranks; None: for iterable data sets only."""
    even_batches: bool = True
    """Whether samples are repeated so that every rank gets the same number of batches."""
    use_seedable_sampler: bool = False
    """Whether the order of samples depends only on the seed and the epoch."""
    data_seed: int | None = None
    """Seed of that order; None for torch's initial seed."""
    non_blocking: bool = False
    """Whether batches are copied to the device asynchronously."""
    use_stateful_dataloader: FixedSetting = FixedSetting("dataloader_config")
    """Whether torchdata's stateful loaders are used; the Trainer restores positions itself."""

    @classmethod
    def of(cls, config: AcceleratorConfig, data_seed: int | None) -> LoaderSettings:
        """Return the settings in ``config``, the field ``accelerator_config``."""
        return cls(
            split_batches=config.split_batches,
            dispatch_batches=config.dispatch_batches,
            even_batches=config.even_batches,
            use_seedable_sampler=config.use_seedable_sampler,
            data_seed=data_seed,
            non_blocking=config.non_blocking,
        )


@dataclass
class ProjectSettings:
    """Folders of a project, by the names of accelerate's ``ProjectConfiguration``; the Trainer uses ``output_dir``."""

    project_dir: str | None = None
    """Folder of the project."""
    logging_dir: str | None = None
    """Folder of its logs."""
    automatic_checkpoint_naming: FixedSetting = FixedSetting("project_configuration")
    """Whether accelerate numbers the checkpoints that it saves."""
    total_limit: FixedSetting = FixedSetting("project_configuration")
    """How many of them are kept."""
    iteration: FixedSetting = FixedSetting("project_configuration")
    """Number of the next one."""
    save_on_each_node: FixedSetting = FixedSetting("project_configuration")
    """Whether each node saves."""


class SettingsObject(Generic[Kind]):
    """Settings of ``kind`` as an attribute; accelerate's own object may be assigned, whose values are taken over."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, holder: None, owner: type) -> SettingsObject[Kind]: ...

    @overload
    def __get__(self, holder: object, owner: type) -> Kind: ...

    def __get__(self, holder: object, owner: type) -> SettingsObject[Kind] | Kind:
        if holder is None:
            return self
        value: Kind = vars(holder)[self._name]
        return value

    def __set__(self, holder: object, value: Any) -> None:
        names = (field.name for field in fields(self._kind))  # type: ignore[arg-type]
        vars(holder)[self._name] = self._kind(**{name: getattr(value, name) for name in names})
