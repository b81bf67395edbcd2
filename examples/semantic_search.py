"""Find the sentences that are nearest to a query, by the vectors of `Embed`.

python examples/semantic_search.py [HOST:PORT] [QUERY]

The shipped model is a translator, so its vectors rank by wording more than by meaning. For semantic search in earnest,
export a sentence encoder (docs/checkpoints.md) and serve that.
"""

import sys

import numpy as np

from dragoman.client import Client, ClientError

SENTENCES = [
    "The cat is sleeping on the sofa.",
    "Where can I buy a train ticket?",
    "The file could not be saved.",
    "It will rain tomorrow.",
    "This program has no documentation.",
]
QUERY = "The dog is sleeping on the floor."


def main(address: str, query: str) -> None:
    """Print the sentences by falling cosine similarity to `query`."""
    with Client(address) as client:
        try:
            # Normalized vectors: the inner product is the cosine.
            vectors = np.stack([each.values for each in client.embed([query, *SENTENCES], normalize=True).embeddings])
        except ClientError as error:
            sys.exit(f"{address}: {error}")
    similarities = vectors[1:] @ vectors[0]
    print(query)
    for index in np.argsort(-similarities):
        print(f"    {similarities[index]:.3f}  {SENTENCES[index]}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(arguments[0] if arguments else "127.0.0.1:50051", arguments[1] if len(arguments) > 1 else QUERY)
