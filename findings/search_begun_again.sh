#!/usr/bin/env bash
# A search that is continued with its seed tries the same values again.
#
# Versions:  optuna 5.0.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: a study in a database is continued with `load_if_exists=True`; its sampler is not in there. One with a seed begins
#            to draw anew, and draws at random until ten trials have ended, so that the first trials of the second process are
#            those of the first process, to the last digit, and so are those of workers that share a study and a seed.
# Seen:      a study of 4 trials, continued with 4: 4 different values. Without a seed there are 8.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install optuna==5.0.0 numpy==2.4.6
run <<'PYTHON'
import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)


def rates(name, new_sampler):
    for _ in range(2):  # two processes, one after the other
        study = optuna.create_study(study_name=name, storage="sqlite:///study.db", load_if_exists=True, sampler=new_sampler())
        study.optimize(lambda trial: trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True), n_trials=4)
    return [trial.params["learning_rate"] for trial in study.trials]


seeded = rates("seeded", lambda: optuna.samplers.TPESampler(seed=0))
unseeded = rates("unseeded", optuna.samplers.TPESampler)
print(f"with a seed: {seeded}; different values without: {len(set(unseeded))}")
assert seeded[:4] == seeded[4:] and len(set(seeded)) == 4
assert len(set(unseeded)) == 8
PYTHON
