"""The description of a served model that callers get."""

from dragoman.bundle.manifest import Manifest
from dragoman.client.values import ModelInfo


def model_info(manifest: Manifest, provider: str, threads: int) -> ModelInfo:
    """Describe the model of `manifest`, run by `provider` on `threads` threads."""
    return ModelInfo(
        name=manifest.name,
        version=manifest.version,
        family=manifest.family,
        source_languages=manifest.source_languages,
        target_languages=manifest.target_languages,
        precision=manifest.precision,
        provider=provider,
        max_source_tokens=manifest.decoding.max_source_tokens,
        max_output_tokens=manifest.decoding.max_output_tokens if manifest.translates else 0,
        max_source_characters=manifest.max_source_characters,
        embedding_dimension=manifest.dimensions.d_model,
        threads=threads,
    )
