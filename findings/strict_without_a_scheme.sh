#!/usr/bin/env bash
# `mode="strict"` of seqeval is not strict without a `scheme`, and a `scheme` without it is not looked at.
#
# Versions:  seqeval 1.2.2; Python 3.11 on a CPU
# Behaviour: each of the two alone has no effect: the rule is that of conlleval then, in which an entity may begin with `I-`,
#            and one that begins after another kind needs no `B-`. A model that never learned `B-` has the F1 of one that
#            did. No message says so.
# Seen:      an entity that begins with `I-` instead of `B-`: F1 is 1 with `mode="strict"`, 1 with `scheme=IOB2`, and 0 with
#            both.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install seqeval==1.2.2
run <<'PYTHON'
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2

true = [["B-PER", "I-PER", "O"]]
predicted = [["I-PER", "I-PER", "O"]]
neither = f1_score(true, predicted)
strict = f1_score(true, predicted, mode="strict")
scheme = f1_score(true, predicted, scheme=IOB2)
both = f1_score(true, predicted, mode="strict", scheme=IOB2)
print("neither:", neither, "mode:", strict, "scheme:", scheme, "both:", both)
assert neither == strict == scheme == 1 and both == 0
PYTHON
