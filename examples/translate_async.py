"""Translate many texts from asyncio, a bounded number of calls at a time.

python examples/translate_async.py [HOST:PORT]
"""

import asyncio
import sys

from dragoman.client import AsyncClient, ClientError

TEXTS = [f"There are {number} birds in the garden." for number in range(2, 22)]

MAX_CALLS = 8
"""Calls in flight. The server batches concurrent calls, so more than one keeps it busy."""


async def main(address: str) -> None:
    """Print each translation in the order of the texts."""
    free = asyncio.Semaphore(MAX_CALLS)
    async with AsyncClient(address) as client:

        async def translate(text: str) -> str:
            async with free:
                return (await client.translate([text], to="fr")).translations[0].text

        try:
            translations = await asyncio.gather(*map(translate, TEXTS))
        except ClientError as error:
            sys.exit(f"{address}: {error}")
    for source, translation in zip(TEXTS, translations, strict=True):
        print(f"{source} → {translation}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"))
