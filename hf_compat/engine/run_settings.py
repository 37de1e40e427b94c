"""The settings of a run: its training arguments and the user's keywords of ``lightning.Trainer`` as one."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from lightning.pytorch.plugins.precision import Precision

from hf_compat.arguments import TrainingArguments
from hf_compat.arguments.checks import find_problems, reports_by_default
from hf_compat.arguments.convert import from_transformers
from hf_compat.arguments.deepspeed import use_deepspeed, uses_deepspeed
from hf_compat.arguments.derived import evaluates, evaluates_in_training
from hf_compat.arguments.enums import SaveStrategy
from hf_compat.arguments.fields import declared
from hf_compat.arguments.problems import Problem, raise_all
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.engine.keywords import (
    EVALUATION_KEYWORDS,
    FIELD_KEYWORDS,
    SHARES,
    as_given,
    barebones_problems,
    clipping_meant,
    development_fields,
    evaluation_meant,
    keyword_problems,
    named,
    naming_variables,
    precision_meant,
    spelled_out,
    user_plugins,
    with_fabric_variables,
    with_keywords_for_all,
)
from hf_compat.engine.precision import true_precision
from hf_compat.engine.strategies.choice import deepspeed_meant, strategy_spelled_out
from hf_compat.errors import TrainerSetupError
from hf_compat.plan.plan import DataLimits, EvaluationTimes, LoopSettings

_SETTLED = (
    *(name for name in FIELD_KEYWORDS if name not in ("barebones", "enable_progress_bar", "logger")),
    *(*SHARES, *EVALUATION_KEYWORDS, "gradient_clip_algorithm", "gradient_clip_val", "precision"),
    "use_distributed_sampler",
)
"""Keywords that ``lightning.Trainer`` is not given, as they are in the arguments, the settings or the plugins."""
_NEVER = sys.maxsize
"""``eval_delay`` of a run whose evaluations are not at the times that training arguments can say."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run, from training arguments and keywords of ``lightning.Trainer``."""

    args: TrainingArguments
    """The training arguments; a copy if keywords set fields."""
    keywords: dict[str, Any] = field(default_factory=dict)
    """The other keywords, for ``lightning.Trainer``."""
    limits: DataLimits = field(default_factory=DataLimits)
    """How much of its data a run reads."""
    loop_settings: LoopSettings = field(default_factory=LoopSettings)
    """How a run goes about its work."""
    problems: list[str] = field(default_factory=list)
    """Why keywords are refused."""


@naming_variables()
def effective_settings(args: Any, lightning: Mapping[str, Any] | None, *, has_eval_data: bool = False) -> Settings:
    """Return what ``args`` and the keywords ``lightning`` say together.

    A keyword that says what a field says sets that field, in a copy of ``args``; one that contradicts a field which
    differs from its default is a problem, but ``fast_dev_run`` overrules fields as it overrules keywords.

    Args:
        args: The training arguments, ours or transformers'; None for ``TrainingArguments("tmp_trainer")``.
        lightning: The user's keywords of ``lightning.Trainer``; ``lightning_keywords`` adds others, and so does
            `fabric run` by its variables.
        has_eval_data: Whether there is something to evaluate on.

    Raises:
        ArgumentsError: If the arguments are not valid, with what the keywords say or without.
        MissingPackageError: If a keyword needs a package that is not installed.
    """
    args = TrainingArguments("tmp_trainer") if args is None else from_transformers(args)
    keywords, contradictions = with_fabric_variables(with_keywords_for_all(lightning))
    given, conflicts = strategy_spelled_out(keywords)
    problems = [*contradictions, *map(named, [*keyword_problems(given), *barebones_problems(given), *conflicts])]
    if problems or not given:
        return Settings(args, given, problems=problems)
    args = _with_fields(args, development_fields(given, has_eval_data=has_eval_data))
    meant = _Meaning(args, given, spelled_out(given), has_eval_data=has_eval_data)
    if meant.problems:
        return Settings(args, given, problems=[named(problem) for problem in meant.problems])
    keywords = {name: value for name, value in meant.keywords.items() if name not in _SETTLED}
    if meant.plugin is not None:
        keywords["plugins"] = [*user_plugins(given), meant.plugin]
    args = _with_fields(args, meant.fields, meant.written)
    return Settings(args, keywords, _limits_meant(meant.keywords), meant.loop_settings)


class _Meaning:
    """Meaning of keywords beside ``args``: fields, a plugin, settings of the loop; and their problems.

    Args:
        args: The training arguments.
        user_keywords: The user's keywords, for the messages.
        keywords: The same, with those that others stand for.
        has_eval_data: Whether there is something to evaluate on.
    """

    def __init__(
        self,
        args: TrainingArguments,
        user_keywords: Mapping[str, Any],
        keywords: dict[str, Any],
        *,
        has_eval_data: bool,
    ) -> None:
        self._args = args
        self._user_keywords = user_keywords
        self.keywords = keywords
        self.fields: dict[str, Any] = {}
        self.written: dict[str, str] = {}
        """Field to the keywords that set it, as the user wrote them."""
        self.problems: list[str] = []
        self.plugin: Precision | None = None
        self._clip_value: float | None = None
        self._times: EvaluationTimes | None = None
        readers = (self._read_fields, self._read_clipping, self._read_evaluation, self._read_precision)
        for read in (self._read_strategy, *readers):
            try:
                read()
            except TrainerSetupError as error:
                self.problems.append(str(error))
        self._check_end()
        self._check_data(has_eval_data=has_eval_data)
        changed = [name for name, value in self.fields.items() if getattr(args, name) != value]
        if changed and uses_deepspeed(args) and "deepspeed" not in changed:
            names = ", ".join(f"`{name}`" for name in changed)
            self.problems.append(
                f"`lightning={dict(user_keywords)}`: with `deepspeed`, set {names} in `TrainingArguments` instead."
            )

    @property
    def loop_settings(self) -> LoopSettings:
        """Settings of the loop."""
        keywords = self.keywords
        return LoopSettings(
            clip_value=self._clip_value,
            sanity_batches=keywords.get("num_sanity_val_steps") or 0,
            reload_every=keywords.get("reload_dataloaders_every_n_epochs", 0),
            shards_batches=keywords.get("use_distributed_sampler", True),
            evaluation_times=self._times,
        )

    def _set(self, keyword: str, values: Mapping[str, Any]) -> None:
        """Set fields as ``keyword`` says, unless the user has set them to something else."""
        for name, value in values.items():
            current = getattr(self._args, name)
            if current != value and not _is_default(self._args, name):
                self.problems.append(_contradiction(keyword, name, current))
            self.fields[name] = value
            self.written[name] = f"lightning={{{keyword}}}"

    def _read_strategy(self) -> None:
        strategy = self.keywords.get("strategy")
        config = deepspeed_meant(strategy, use_cpu=self._args.use_cpu)
        if config is None:
            return
        shown = repr(strategy) if isinstance(strategy, str) else f"{type(strategy).__name__}(...)"
        self._set(f"'strategy': {shown}", {"deepspeed": config})
        if uses_deepspeed(self._args) and not self._args.deepspeed:
            self.problems.append(
                f"`lightning={{'strategy': {shown}}}` contradicts ACCELERATE_USE_DEEPSPEED, which `accelerate launch` "
                "sets: remove one of them."
            )

    def _read_fields(self) -> None:
        args, keywords = self._args, self.keywords
        for name in FIELD_KEYWORDS:
            if name in keywords:
                shown = f"'{name}': {keywords[name]!r}" if name in self._user_keywords else "'barebones': True"
                self._set(shown, FIELD_KEYWORDS[name](keywords[name]))
        if keywords.get("max_epochs") == -1 and max(args.max_steps, keywords.get("max_steps", -1)) < 0:
            self.problems.append(
                "`lightning={'max_epochs': -1}`: an open-ended run has no learning-rate schedule. Set `max_steps`."
            )

    def _read_clipping(self) -> None:
        fields, self._clip_value = clipping_meant(self.keywords)
        shown = as_given(self._user_keywords, ("gradient_clip_val", "gradient_clip_algorithm"))
        if self._clip_value is not None and (uses_deepspeed(self._args) or "deepspeed" in self.fields):
            raise TrainerSetupError(
                f"`lightning={{{shown}}}` is not supported with `deepspeed`, whose engine only clips by norm: set "
                "`max_grad_norm` instead."
            )
        self._set(shown, fields)

    def _read_evaluation(self) -> None:
        args, given = self._args, self.keywords
        fields, self._times = evaluation_meant(given, args.eval_delay)
        shown = as_given(given, EVALUATION_KEYWORDS)
        self._set(shown, fields)
        if self._times is not None:
            self.fields["eval_delay"] = _NEVER
            saving = args.save_strategy
            if args.load_best_model_at_end and saving != "best" and not self._times.at_epoch_end:
                self.problems.append(
                    f"`lightning={{{shown}}}` with `load_best_model_at_end=True`: "
                    f"`save_strategy='{SaveStrategy(saving).value}'` does not save at these evaluations. "
                    "Set `save_strategy='best'`."
                )
        if given.get("limit_val_batches") == 0 and evaluates_in_training(args):
            keyword = f"'limit_val_batches': {given['limit_val_batches']!r}"
            self.problems.append(_contradiction(keyword, "eval_strategy", args.eval_strategy))

    def _read_precision(self) -> None:
        self.plugin, mixed = _precision_meant(self._args, self.keywords)
        self._set(as_given(self._user_keywords, ("precision",)), mixed)

    def _check_end(self) -> None:
        """Note a minimum that is behind the end of the run."""
        end = {name: self.fields.get(name, getattr(self._args, name)) for name in ("max_steps", "num_train_epochs")}
        by_steps = end["max_steps"] >= 0
        least, most = ("min_steps", "max_steps") if by_steps else ("min_epochs", "num_train_epochs")
        if not self.keywords.get("fast_dev_run") and (self.keywords.get(least) or 0) > end[most]:
            self.problems.append(_contradiction(f"'{least}': {self.keywords[least]!r}", most, end[most]))

    def _check_data(self, *, has_eval_data: bool) -> None:
        """Note what the data do not allow."""
        batches = self.keywords.get("num_sanity_val_steps")
        if batches and not has_eval_data:
            self.problems.append(
                f"`lightning={{'num_sanity_val_steps': {batches!r}}}`: `eval_dataset=None`, so there is nothing to "
                "check. Pass a dataset, or remove the keyword."
            )


def _is_default(args: TrainingArguments, name: str) -> bool:
    """Return whether ``args`` have the default of a field, or one that is equal to it."""
    if name == "report_to":
        return reports_by_default(args)
    return name == "disable_tqdm" or bool(getattr(args, name) == declared(type(args))[name].default_value)


def _contradiction(keyword: str, name: str, current: object) -> str:
    shown = str(current.value) if hasattr(current, "value") else current
    return f"`lightning={{{keyword}}}` contradicts `{name}={shown!r}` of the training arguments. Set one of them only."


def _precision_meant(args: TrainingArguments, keywords: Mapping[str, Any]) -> tuple[Precision | None, dict[str, Any]]:
    """Return the precision plugin and the fields that ``precision`` means.

    Raises:
        MissingPackageError: If the plugin needs a package that is not installed.
        TrainerSetupError: If it is unknown, or contradicts ``args`` or a plugin.
    """
    meant = precision_meant(keywords.get("precision"))
    if meant is None:
        return None, {}
    keyword = f"'precision': {keywords['precision']!r}"
    wanted = meant if meant in ("bf16", "fp16") else "no"
    if (asked := args.mixed_precision) not in ("no", wanted):
        raise TrainerSetupError(_contradiction(keyword, asked, True))
    others = [plugin for plugin in user_plugins(keywords) if isinstance(plugin, Precision)]
    if others:
        name = type(others[0]).__name__
        raise TrainerSetupError(
            f"`lightning={{{keyword}, 'plugins': [{name}]}}` both set the precision: choose one of them."
        )
    if meant in ("bf16", "fp16"):
        return None, {meant: True}
    return (None if meant == "no" else true_precision(meant)), {}


def _limits_meant(keywords: Mapping[str, Any]) -> DataLimits:
    """Return how much of its data a run reads."""
    shares = {name: 1.0 if keywords.get(name) is None else keywords[name] for name in SHARES}
    both = shares["overfit_batches"] if keywords.get("overfit_batches") else None
    predicts = shares[
        "limit_test_batches" if keywords.get("limit_predict_batches") is None else "limit_predict_batches"
    ]
    epochs = keywords.get("max_epochs")
    return DataLimits(
        train=shares["limit_train_batches"] if both is None else both,
        evaluation=shares["limit_val_batches"] if both is None else both,
        prediction=predicts,
        test=shares["limit_test_batches"],
        max_epochs=None if epochs in (None, -1) else epochs,
    )


def _with_fields(
    args: TrainingArguments, fields: Mapping[str, Any], written: Mapping[str, str] = MappingProxyType({})
) -> TrainingArguments:
    """Return ``args``, or a copy of them in which ``fields`` are set.

    Args:
        args: The training arguments.
        fields: Field to value.
        written: Field to the keywords that set it, as the user wrote them.

    Raises:
        ArgumentsError: If they are then not valid; of a field that a keyword set, it names the keyword.
    """
    if all(getattr(args, name) == value for name, value in fields.items()):
        return args
    args = copy.copy(args)
    vars(args).update(fields)
    args.do_eval = evaluates(args)
    for precision in ("bf16", "fp16"):
        if fields.get(precision):
            args.mixed_precision = precision
    raise_all(_as_written(problem, written) for problem in find_problems(args, resolve_semantics(args.semantics)))
    if "deepspeed" in fields:  # after all fields, from which the config is filled in
        args.hf_deepspeed_config, args.deepspeed_plugin = use_deepspeed(args)
    return args


def _as_written(problem: Problem, written: Mapping[str, str]) -> Problem:
    """Return ``problem`` with the keyword that set its field, or that set another field which its text names."""
    if problem.field in written:
        return replace(problem, written=written[problem.field])
    keywords = dict.fromkeys(f"`{keyword}`" for name, keyword in written.items() if f"`{name}" in problem.text)
    return replace(problem, text=f"{problem.text} Set by {', '.join(keywords)}.") if keywords else problem
