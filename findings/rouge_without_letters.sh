#!/usr/bin/env bash
# ROUGE of a text with itself is zero, if it is in Russian or Chinese.
#
# Versions:  rouge-score 0.1.2, torch 2.13.0, torchmetrics 1.9.0, nltk 3.10.4; Python 3.11 on a CPU
# Behaviour: the tokenizer of `rouge_score`, and that of torchmetrics' `ROUGEScore`, keeps the letters a to z and digits
#            and drops all others, without a message. Letters with accents split their words.
# Seen:      ROUGE-1 of a text with itself: 1.0 in English, 0.0 in Russian and in Chinese, with both; and 1.0 for
#            "größe" and "gr e". With a tokenizer that splits at spaces the Russian text has 1.0.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install rouge-score==0.1.2 torch==2.13.0 torchmetrics==1.9.0 nltk==3.10.4
run <<'PYTHON'
from rouge_score.rouge_scorer import RougeScorer
from torchmetrics.text import ROUGEScore


class Words:
    def tokenize(self, text):
        return text.split()


def google(text, other, tokenizer=None):
    return RougeScorer(["rouge1"], tokenizer=tokenizer).score(text, other)["rouge1"].fmeasure


def torchmetrics(text, other):
    return ROUGEScore(rouge_keys="rouge1")(text, other)["rouge1_fmeasure"].item()


texts = ["hello world", "привет мир", "你好 世界"]
for name, score in (("rouge_score", google), ("torchmetrics", torchmetrics)):
    values = [score(text, text) for text in texts]
    print(f"{name}, each of {texts} with itself: {values}")
    assert values == [1.0, 0.0, 0.0]
print("größe and gr e:", google("größe", "gr e"), "- by words, in Russian:", google(texts[1], texts[1], Words()))
assert google("größe", "gr e") == google(texts[1], texts[1], Words()) == 1.0
PYTHON
