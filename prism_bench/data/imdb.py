"""IMDB: 50,000 film reviews, negative (0) or positive (1), as the most frequent words of the training part.

A word is a run of letters, lower-case, apostrophes dropped ("don't" is "dont"); mark-up such as ``<br />`` and digits
are no words. Which stop words the paper dropped it does not say: here they are scikit-learn's English ones. Words that
the vocabulary doesn't have are dropped, the first 500 that are left are kept, and shorter reviews are padded on the
left with 0. The same reviews give the same tensors whichever form they were read from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from prism_bench.base.errors import BadInput
from prism_bench.data.dataset import Dataset, Split
from prism_bench.data.sources import OnProgress, Raw, RawForm, StoredSource, rows

SPLITS = ("train", "test")
SENTIMENTS = {"negative": 0, "positive": 1}

_MARKUP = re.compile(r"<[^<>]{0,20}>")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Reviews:
    """Texts and their labels, in an order that does not depend on where they came from."""

    texts: list[str]
    labels: list[int]

    @classmethod
    def ordered(cls, pairs: Iterable[tuple[int, str]]) -> Reviews:
        labels, texts = zip(*sorted(pairs), strict=True)
        return cls(list(texts), list(labels))


def words_of(text: str) -> list[str]:
    """The words of a review that are no stop words.

    >>> words_of("I didn't like<br /><br />the 2 ACTORS.")
    ['didnt', 'like', 'actors']
    """
    plain = _MARKUP.sub(" ", text).lower().replace("'", "").replace("’", "")
    stop = _stop_words()
    return [word for word in _WORD.findall(plain) if word not in stop]


@cache
def _stop_words() -> frozenset[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    found: frozenset[str] = ENGLISH_STOP_WORDS
    return found


def vocabulary(reviews: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """The most frequent words, numbered from 1 by falling frequency, equal ones by the alphabet; 0 is the padding.

    >>> vocabulary([["good", "film"], ["bad", "film"]], size=2)
    {'film': 1, 'bad': 2}
    """
    counts: Counter[str] = Counter()
    for review in reviews:
        counts.update(review)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[:size], start=1)}


def encode(reviews: Sequence[Sequence[str]], numbers: Mapping[str, int], length: int) -> Tensor:
    """One row of ``length`` tokens a review: its first known words, padded on the left.

    >>> encode([["good", "odd", "film"]], {"film": 1, "good": 2}, length=4).tolist()
    [[0, 0, 2, 1]]
    """
    tokens = np.zeros((len(reviews), length), np.int16)
    for row, review in zip(tokens, reviews, strict=True):
        known = [number for number in map(numbers.get, review) if number][:length]
        row[length - len(known) :] = known
    return torch.from_numpy(tokens)


def _read_hub(raw: Raw, tell: OnProgress) -> dict[str, Reviews]:
    parts = {}
    for split in SPLITS:
        pieces = list(rows(raw, split, {"text": "text", "label": "label"}, tell))
        pairs = [pair for piece in pieces for pair in zip(piece["label"], piece["text"], strict=True)]
        if not {label for label, _ in pairs} <= {0, 1}:
            raise BadInput(f"{raw.place}: needs labels 0 (negative) and 1 (positive) in its {split} split.")
        parts[split] = Reviews.ordered(pairs)
    return parts


def _read_folders(raw: Raw, tell: OnProgress) -> dict[str, Reviews]:
    pairs: dict[str, list[tuple[int, str]]] = {split: [] for split in SPLITS}
    for done, file in enumerate(raw.files, start=1):
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{file}: can't be read: {error}.") from None
        pairs[file.parent.parent.name].append((int(file.parent.name == "pos"), text))
        tell("reviews", done, len(raw.files))
    for split, several in pairs.items():
        if {label for label, _ in several} != {0, 1}:
            raise BadInput(f"{raw.place}: needs reviews in both {split}/pos and {split}/neg.")
    return {split: Reviews.ordered(several) for split, several in pairs.items()}


def _read_csv(raw: Raw, tell: OnProgress) -> dict[str, Reviews]:
    import pandas as pd

    file = raw.files[0]
    try:
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: can't be read as CSV: {str(error).strip()}.") from None
    for column in ("review", "sentiment"):
        if column not in frame:
            raise BadInput(f"{file}: has no column '{column}', only: {', '.join(map(str, frame.columns))}.")
    unknown = set(frame["sentiment"]) - set(SENTIMENTS)
    if unknown or frame.empty:
        got = f"got {sorted(unknown)[0]!r}" if unknown else "it has no rows"
        raise BadInput(f"{file}: 'sentiment' must be 'positive' or 'negative' in every row ({got}).")
    tell("reviews", len(frame), len(frame))
    labels = [SENTIMENTS[name] for name in frame["sentiment"]]
    return {"all": Reviews.ordered(zip(labels, frame["review"], strict=True))}


class IMDB(StoredSource):
    """IMDB: film reviews, negative or positive, as up to 500 of the 1,000 most frequent words, padded on the left."""

    split: Literal["paper", "original"] = Field(
        "paper", description="paper: all 50,000 pooled, stratified 75/25; original: 25,000 / 25,000"
    )
    words: int = Field(1000, gt=0, le=torch.iinfo(torch.int16).max, description="vocabulary, without the padding")
    length: PositiveInt = Field(500, description="tokens a review")

    title = "IMDB"
    complete = 50_000
    hub = "stanfordnlp/imdb"
    forms = (
        RawForm("the Hub's layout", ("stanfordnlp/imdb",), ("**/train*.parquet", "**/test*.parquet"), _read_hub),
        RawForm(
            "the aclImdb folder",
            ("aclImdb", "."),
            tuple(f"{s}/{k}/*.txt" for s in SPLITS for k in ("pos", "neg")),
            _read_folders,
        ),
        RawForm("the Kaggle CSV", (".", "imdb"), ("IMDB Dataset.csv",), _read_csv),
    )

    def prepare(self, raw: Raw, tell: OnProgress) -> dict[str, Any]:
        parts: Mapping[str, Reviews] = raw.form.read(raw, tell)
        texts, labels = {}, {}
        for split, reviews in self._split(parts, raw).items():
            cleaned = []
            for text in reviews.texts:
                cleaned.append(words_of(text))
                if len(cleaned) % 1000 == 0 or len(cleaned) == len(reviews.texts):
                    tell(f"words of {split}", len(cleaned), len(reviews.texts))
            texts[split], labels[split] = cleaned, torch.tensor(reviews.labels)
        numbers = vocabulary(texts["train"], self.words)
        return {
            **{split: (encode(texts[split], numbers, self.length), labels[split]) for split in SPLITS},
            "words": list(numbers),
        }

    def _split(self, parts: Mapping[str, Reviews], raw: Raw) -> Mapping[str, Reviews]:
        if self.split == "original":
            if "all" in parts:
                raise BadInput(
                    f"data.split: {raw.files[0]} does not say which reviews are the original test set; "
                    "use 'paper', the aclImdb folder or the Hub's files."
                )
            return parts
        from sklearn.model_selection import train_test_split

        pooled = Reviews.ordered(pair for part in parts.values() for pair in zip(part.labels, part.texts, strict=True))
        try:
            # One fixed split for every seed: the test set is part of the benchmark.
            chosen = train_test_split(
                np.arange(len(pooled.labels)), test_size=0.25, stratify=pooled.labels, random_state=0
            )
        except ValueError as error:
            raise BadInput(f"{raw.place}: has too few reviews to be split: {error}") from None
        return {
            split: Reviews([pooled.texts[i] for i in index], [pooled.labels[i] for i in index])
            for split, index in zip(SPLITS, chosen, strict=True)
        }

    def assemble(self, tensors: Mapping[str, Any]) -> Dataset:
        return Dataset(
            Split(*tensors["train"]),
            Split(*tensors["test"]),
            classes=2,
            vocabulary=self.words + 1,
        )
