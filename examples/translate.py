"""Translate a few texts from synchronous code.

python examples/translate.py [HOST:PORT]
"""

import sys

from dragoman.client import Client, ClientError

TEXTS = ["The cat sat on the mat.", "Where is the nearest railway station?"]


def main(address: str) -> None:
    """Print each translation with its finish reason, token counts and score."""
    with Client(address) as client:
        try:
            result = client.translate(TEXTS, to="fr")
        except ClientError as error:
            sys.exit(f"{address}: {error}")
    print(f"model {result.model}, version {result.model_version}")
    for source, translation in zip(TEXTS, result.translations, strict=True):
        print(f"{source} → {translation.text}")
        print(
            f"    {translation.finish_reason.name}, {translation.source_tokens} source tokens, "
            f"{translation.output_tokens} output tokens, score {translation.score:.3f}"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
