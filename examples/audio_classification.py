"""Tell vowels apart with a small audio spectrogram transformer, torchmetrics and a logger of Lightning's.

``compute_metrics`` takes a collection of torchmetrics and updates it batch by batch; ``lightning`` takes keywords of
``lightning.Trainer``, such as a logger. The voices are made here: ten vowels with the formants that Peterson and Barney
measured in 1952, each clip with its own pitch, length of the vocal tract and noise. Nothing is downloaded:

    pip install -e ".[transformers]"
    python examples/audio_classification.py [output folder]
"""

import sys

import numpy as np
from lightning.pytorch.loggers import CSVLogger
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassRecall

from hf_compat import ASTConfig, ASTFeatureExtractor, ASTForAudioClassification, Trainer, TrainingArguments, set_seed

RATE, SECONDS, NUM_TRAIN, NUM_EVAL = 16_000, 0.3, 1200, 300
FORMANTS = {  # of the vowels in these words, in Hz
    "heed": (270, 2290, 3010),
    "hid": (390, 1990, 2550),
    "head": (530, 1840, 2480),
    "had": (660, 1720, 2410),
    "hod": (730, 1090, 2440),
    "hawed": (570, 840, 2410),
    "hood": (440, 1020, 2240),
    "who'd": (300, 870, 2240),
    "hud": (640, 1190, 2390),
    "heard": (490, 1350, 1690),
}


def vowel(formants, draw):
    """Return a clip: the harmonics of a voice, each as loud as the vocal tract lets it through, and noise."""
    time = np.arange(int(RATE * SECONDS)) / RATE
    pitch, tract = draw.uniform(90, 260), draw.uniform(0.9, 1.2)
    harmonics = np.arange(pitch, 5000, pitch)[:, None]
    centres = np.array(formants) * tract * draw.normal(1, 0.03, 3)
    loudness = np.prod([1 / np.abs(1 - (harmonics / f) ** 2 + 0.12j * harmonics / f) for f in centres], 0) / harmonics
    voice = (loudness * np.sin(2 * np.pi * harmonics * time + draw.uniform(0, 2 * np.pi, harmonics.shape))).sum(0)
    return voice / voice.std() + draw.normal(0, 0.2, time.shape)


def samples(count, seed):
    """Return spectrograms of ``count`` clips with the numbers of their vowels."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(len(FORMANTS), size=count)
    clips = [vowel(list(FORMANTS.values())[label], draw) for label in labels]
    extractor = ASTFeatureExtractor(num_mel_bins=64, max_length=32, mean=0.0, std=4.0)
    spectrograms = extractor(clips, sampling_rate=RATE, return_tensors="pt")["input_values"]
    return [{"input_values": s, "labels": int(label)} for s, label in zip(spectrograms, labels, strict=True)]


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "audio_classification_output"
    set_seed(0)
    names = dict(enumerate(FORMANTS))
    model = ASTForAudioClassification(
        ASTConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_mel_bins=64,
            max_length=32,
            patch_size=8,
            frequency_stride=8,
            time_stride=8,
            id2label=names,
            label2id={name: number for number, name in names.items()},
        )
    )
    args = TrainingArguments(
        folder,
        num_train_epochs=8,
        per_device_train_batch_size=32,
        learning_rate=2e-3,
        warmup_steps=30,
        logging_steps=20,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        report_to="none",
    )
    logger = CSVLogger(folder, name="log")
    trainer = Trainer(
        model,
        args,
        train_dataset=samples(NUM_TRAIN, seed=1),
        eval_dataset=samples(NUM_EVAL, seed=2),
        compute_metrics=MetricCollection(
            {"accuracy": MulticlassAccuracy(10, average="micro"), "recall": MulticlassRecall(10, average="none")}
        ),
        lightning={"logger": logger},
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    print("\nvowel in   found")
    for number, name in names.items():
        print(f"{name:8} {after[f'eval_recall_{number}']:7.0%}")
    print(
        f"\naccuracy {before['eval_accuracy']:.1%} -> {after['eval_accuracy']:.1%} on {NUM_EVAL} held-out clips; "
        f"curves: {logger.log_dir}/metrics.csv"
    )


if __name__ == "__main__":
    main()
