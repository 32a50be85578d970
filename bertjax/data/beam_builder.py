"""The same preparation on Apache Beam (extra `beam`), for corpora beyond one machine.

TFDS runs it: the builder below gives TFDS a Beam transform, and TFDS writes the shards. The
documents, their splits and their records are those of `builder.prepare`; their order is another
one, by a digest of each document's place in the source, so that shards get equal shares. The
index and the report are then made in one pass over the records on the machine that started it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow_datasets as tfds
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from bertjax.data import pipeline as local
from bertjax.data import report as reporting
from bertjax.data import storage, store
from bertjax.data.corpus import open_source
from bertjax.data.encoder import EncodedChunk, EncodedPiece, Encoder, Piece, digest64, digest_bytes
from bertjax.data.pipeline import Figures
from bertjax.data.reading import Reading
from bertjax.errors import UserError

_COUNTS, _COUNTS_FILE = "counts", "counts.json"


@dataclasses.dataclass(frozen=True)
class Request:
    """What to prepare; sent to every worker, which needs to see the same files.

    Attributes:
        split: '' for the documents that `choose` divides, else the split of all of them.
    """

    source: str
    layout: str
    invalid_utf8: str
    split: str
    choose: local.Chooser
    encoder: Encoder


class Corpus(tfds.core.GeneratorBasedBuilder):
    """A TFDS dataset of token ids whose records say which document they belong to."""

    VERSION = tfds.core.Version(store.VERSION)

    def __init__(self, *, requests: list[Request], splits: list[str], **options: Any) -> None:
        self._requests = requests
        self._split_names = splits
        self._encoder = requests[0].encoder
        super().__init__(**options)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Token ids of a text corpus, prepared by bertjax.",
            features=tfds.features.FeaturesDict(
                {
                    **storage.features(self._encoder),
                    "lengths": tfds.features.Tensor(shape=(None,), dtype=np.int32),
                    "document": tfds.features.Scalar(np.int64),
                }
            ),
            disable_shuffling=True,  # the key's order keeps the records of a document together
        )

    def _split_generators(self, dl_manager: Any, pipeline: beam.Pipeline) -> dict[str, Any]:
        records, counts = [], []
        for number, request in enumerate(self._requests):
            parts = range(len(_open(request).parts))
            read = (
                pipeline
                | f"parts{number}" >> beam.Create(list(parts))
                | f"read{number}" >> beam.FlatMap(_read, request).with_outputs(_COUNTS, main="text")
            )
            encoded = (
                read["text"]
                | f"spread{number}" >> beam.Reshuffle()
                | f"batch{number}" >> beam.BatchElements(min_batch_size=1, max_batch_size=64)
                | f"encode{number}"
                >> beam.FlatMap(_encode, request.encoder).with_outputs(_COUNTS, main="records")
            )
            records.append(encoded["records"])
            counts += [] if request.split else [read[_COUNTS], encoded[_COUNTS]]
        path = str(epath.Path(self._data_dir_root) / _COUNTS_FILE)
        _ = (
            tuple(counts)
            | "all counts" >> beam.Flatten()
            | "sums" >> beam.CombinePerKey(sum)
            | "one" >> beam.combiners.ToDict()
            | "keep counts" >> beam.Map(_write_json, path)
        )
        everything = tuple(records) | "all records" >> beam.Flatten()
        return {
            name: everything
            | f"of {name}" >> beam.Filter(lambda record, name=name: record[0] == name)
            | f"keyed {name}" >> beam.Map(lambda record: record[1:])
            for name in self._split_names
        }

    def _generate_examples(self, pipeline: Any) -> Any:
        return pipeline


def _open(request: Request) -> Any:
    return open_source(request.source, Reading(request.layout, request.invalid_utf8))


def _write_json(content: dict[str, int], path: str) -> None:
    epath.Path(path).write_text(json.dumps(content))


def _read(number: int, request: Request) -> Iterator[Any]:
    """((part, document, piece), Piece) of one part of the source; what was met, as counts."""
    source = _open(request)
    source.parts = source.parts[number : number + 1]
    choose = (lambda _: request.split) if request.split else request.choose
    for document, paragraphs in enumerate(source.documents()):
        for place, piece in enumerate(local.pieces(paragraphs, choose)):
            yield (number, document, place), piece
    for name, count in source.reading.counts.items():
        yield beam.pvalue.TaggedOutput(_COUNTS, (name, count))


def _encode(batch: Iterable[tuple[tuple[int, int, int], Piece]], encoder: Encoder) -> Iterator[Any]:
    """(split, key, example) of every record; the key sorts documents by digest, then by place."""
    places, pieces = zip(*batch, strict=True)
    chunk = encoder(pieces)
    features = storage.features(encoder)
    for (part, document, place), piece in zip(places, chunk.pieces, strict=True):
        document_digest = digest64(f"{part}/{document}") >> 1  # it is stored as an int64
        base = document_digest << 128 | part << 96 | document << 56 | place << 16
        ends = np.cumsum(piece.sentences)
        for number, record in enumerate(piece.records):
            first = int(ends[number]) - piece.sentences[number]
            example = features.deserialize_example_np(record)
            example["lengths"] = piece.lengths[first : int(ends[number])].astype(np.int32)
            example["document"] = np.int64(document_digest)
            yield piece.split, base | number, example
    for name, count in {**chunk.counts, "characters": chunk.characters}.items():
        yield beam.pvalue.TaggedOutput(_COUNTS, (name, count))


def build(
    folder: epath.Path, requests: list[Request], splits: list[str], options: str
) -> tuple[reporting.Statistics, Figures]:
    """Run the pipeline, then write the index.

    Args:
        splits: names; a split that stays empty is an error.
        options: of the pipeline, 'runner=DirectRunner,direct_num_workers=2', Beam's own names.

    Returns:
        statistics of the source (duplicates are counted by token ids), figures of each split.
    """
    corpus = Corpus(requests=requests, splits=splits, data_dir=folder, file_format="array_record")
    flags = [f"--{option.strip()}" for option in options.split(",")]
    config = tfds.download.DownloadConfig(
        beam_options=PipelineOptions(flags), try_download_gcs=False
    )
    try:
        corpus.download_and_prepare(download_config=config)
    except Exception as error:
        raise _explained(error) from error
    counts_file = folder / _COUNTS_FILE
    statistics = reporting.Statistics()
    counts = Counter(json.loads(counts_file.read_text()))
    counts_file.unlink()
    (folder / "downloads").rmtree(missing_ok=True)  # TFDS makes it, and nothing uses it
    statistics.characters = counts.pop("characters", 0)
    statistics.counts.update(counts)
    figures = {}
    for name in splits:
        shared = name in ("train", "validation")
        target = statistics if shared else reporting.Statistics()
        figures[name] = _write_index(folder, corpus, name, requests[0].encoder, target)
    return statistics, figures


def _explained(error: Exception) -> UserError:
    """A worker's error reaches us with the name of its stage, as itself or only as text."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    found = [line.partition("UserError: ")[2] for line in lines if "UserError: " in line]
    if isinstance(error, UserError):
        found = [str(error)]
    if found:
        return UserError(found[-1].partition(" [while running")[0])
    if "generated examples is 0" in str(error):
        return UserError(
            "a split stayed empty: the source has no text, or so few documents that none was held "
            "out (raise --held_out, or prepare without --beam_pipeline_options)"
        )
    reason = lines[-1] if lines else type(error).__name__
    return UserError(f"the Beam pipeline failed ({reason}): see its log")


def _write_index(
    folder: epath.Path,
    corpus: Corpus,
    split: str,
    encoder: Encoder,
    statistics: reporting.Statistics,
) -> dict[str, int]:
    """One pass over the records of a split, in order; memory is flat."""
    unknown = encoder.tokenizer.unk_id
    index = storage.IndexWriter(folder, split)
    document, digest = None, hashlib.blake2b(digest_size=8)

    def end() -> None:
        if sentences := index.end_document():
            statistics.add_document(int.from_bytes(digest.digest(), "little"), sentences)

    for record in corpus.as_data_source(split):
        if record["document"] != document:
            end()
            document, digest = record["document"], hashlib.blake2b(digest_size=8)
        ids, lengths = record["ids"], record["lengths"].astype(np.uint16)
        digest.update(ids.tobytes())
        tokens = np.unique(ids, return_counts=True)
        index.add([len(lengths)], lengths, tokens)
        sentences = np.split(ids, np.cumsum(record["lengths"])[:-1])
        lines = [digest_bytes(sentence.tobytes()) for sentence in sentences]
        piece = EncodedPiece(split, False, 0, [], [], lengths, tokens)
        statistics.add(
            EncodedChunk(
                [piece],
                np.array(lines, np.uint64),
                int(np.count_nonzero(ids == unknown)),
                0,
                Counter(),
            )
        )
    end()
    index.close()
    return index.figures()
