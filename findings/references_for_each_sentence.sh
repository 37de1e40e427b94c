#!/usr/bin/env bash
# SacreBLEU scores the first sentence alone, if it gets a list of references for each sentence.
#
# Versions:  sacrebleu 2.6.0; Python 3.11 on a CPU
# Behaviour: `corpus_bleu` takes lists of references, each as long as the texts; torchmetrics and evaluate take a list for
#            each text. Given that, it has as many references for the first text as there are texts, and none for the others,
#            which it leaves out without a message. So do chrF and TER.
# Seen:      three texts, of which the first is right: a BLEU of 35.9, and of 100 with a list for each text; a chrF of 59 and
#            100, a TER of 67 and 0.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install sacrebleu==2.6.0
run <<'PYTHON'
import sacrebleu

texts = ["the red car is there now", "completely wrong output of it", "another bad bad text"]
references = ["the red car is there now", "a b c d e f", "g h i j k l"]
seen = {}
for score in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf, sacrebleu.corpus_ter):
    right, transposed = score(texts, [references]), score(texts, [[each] for each in references])
    seen[score.__name__] = round(right.score, 1), round(transposed.score, 1)
print("with one list for all, and with one for each text:", seen)
assert seen == {"corpus_bleu": (35.9, 100.0), "corpus_chrf": (58.7, 100.0), "corpus_ter": (66.7, 0.0)}
PYTHON
