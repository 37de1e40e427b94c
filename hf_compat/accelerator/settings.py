"""The settings that accelerate's ``Accelerator`` shows as objects: of loaders and of a project's folders."""

from __future__ import annotations

from dataclasses import dataclass

from hf_compat.arguments.accelerator_config import AcceleratorConfig

__all__ = ["LoaderSettings", "ProjectSettings"]


@dataclass(slots=True)
class LoaderSettings:
    """How loaders are prepared, by the names of accelerate's ``DataLoaderConfiguration``."""

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
    use_stateful_dataloader: bool = False
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


@dataclass(slots=True)
class ProjectSettings:
    """Folders of a project, by the names of accelerate's ``ProjectConfiguration``; the Trainer uses ``output_dir``."""

    project_dir: str | None = None
    """Folder of the project."""
    logging_dir: str | None = None
    """Folder of its logs."""
    automatic_checkpoint_naming: bool = False
    """Whether accelerate numbers the checkpoints that it saves."""
    total_limit: int | None = None
    """How many of them are kept."""
    iteration: int = 0
    """Number of the next one."""
    save_on_each_node: bool = False
    """Whether each node saves."""
