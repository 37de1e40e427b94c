#!/usr/bin/env bash
# Samples of 16 bits in an array of 32-bit integers are silence once they are written as sound.
#
# Versions:  soundfile 0.14.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `soundfile.write` takes an array of int32 for samples of 32 bits, whatever is in it, and keeps the upper 16 of
#            each in the file. Samples of 16 bits are int32 after a sum, a difference or `numpy.array` of a list with a dtype
#            of that; what is left of them is one step of the loudness around zero. No message says so.
# Seen:      a tone with a peak of 20,000 of 32,768 has a peak of 0.61 written as int16, and of 0.00003 as int32; as WAV and
#            as FLAC.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install soundfile==0.14.0 numpy==2.4.6
run <<'PYTHON'
import numpy as np
import soundfile

tone = 20000 * np.sin(np.arange(1000))
peaks = {}
for suffix in ("wav", "flac"):
    for kind in ("int16", "int32"):
        soundfile.write(f"tone.{suffix}", tone.astype(kind), 16000)
        peaks[suffix, kind] = float(abs(soundfile.read(f"tone.{suffix}")[0]).max())
print(peaks)
for suffix in ("wav", "flac"):
    assert abs(peaks[suffix, "int16"] - 20000 / 32768) < 0.01
    assert peaks[suffix, "int32"] < 1e-4
PYTHON
